"""``run``: one command in a job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from hpcdet.cli.frame.output import Output
from hpcdet.cli.frame.settings import settings
from hpcdet.cli.interactive import task_verbs
from hpcdet.cli.interactive.start_verbs import (
    StartFlags,
    judged,
    show,
    start_options,
    submitted,
    watching,
)
from hpcdet.tasks import task_views


class RunGroup(task_verbs.TaskGroup):
    """A group in which ``run [FLAGS] -- COMMAND`` stands for ``run start``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        before = args[: args.index("--")] if "--" in args else None
        if before is not None and not any(word in self.commands for word in before):
            args = ["start", *args]
        return super().parse_args(ctx, args)


@click.group("run", cls=RunGroup, short_help="One command in a job.")
def run_command() -> None:
    """One command in a job of the site: hpcdet run -- COMMAND is hpcdet run start.

    \b
    Examples: hpcdet run --wait -- python prepare.py --all
              hpcdet run ls
    """


@run_command.command("start", context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@start_options("run", None)
def start(out: Output, command: Sequence[str], **flags: Any) -> None:
    """Run a command in the present folder, on a node.

    What it prints is kept: hpcdet run logs ID. With --wait it is printed, too, and the
    exit code is the command's. --idle ends a command that prints nothing for so long.

    \b
    Examples: hpcdet run start --slots 1 -- python prepare.py
              hpcdet run --wait -- sh -c 'nvidia-smi; exit 3'
    """
    asked = StartFlags(**flags)
    found = submitted(out, "run", asked, command=command)
    if not asked.wait:
        show(out, found, asked)
        return
    if out.format == "id":
        click.echo(found.id)
    settings().note(f"{found.id} is in the queue; hpcdet run stop {found.id} ends it")
    with watching(found):
        if out.for_people:
            task_verbs.print_output(found)
        else:
            task_verbs.until(found, lambda _: False, lambda: None)
    if not out.for_people and out.format != "id":
        out.emit([task_views.view(found)], task_verbs.COLUMNS)
    raise click.exceptions.Exit(judged(found))


task_verbs.add_verbs(run_command, "run")
