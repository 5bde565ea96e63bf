"""``cancel pause resume retry tag``: what a user asks of an experiment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from hpcdet.cli import follow
from hpcdet.cli.bulk import each
from hpcdet.cli.crank import Crank, cranks
from hpcdet.cli.ids import ids_argument
from hpcdet.cli.output import Output, output
from hpcdet.cli.settings import confirm, settings
from hpcdet.control import commands
from hpcdet.errors import HpcdetError, UsageError
from hpcdet.read import find
from hpcdet.store.layout import ExperimentPaths

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _dry_run() -> Decorator:
    return click.option("-n", "--dry-run", is_flag=True, help="Only say what would be done.")


def _wait() -> Decorator:
    return click.option("--wait", is_flag=True, help="Until it is done.")


@click.command("cancel", short_help="Save checkpoints, then end experiments or trials for good.")
@ids_argument()
@_dry_run()
@_wait()
@output("cancel")
def cancel_command(out: Output, ids: Sequence[str], dry_run: bool, wait: bool) -> None:
    """End experiments or trials (ID/3) for good; running ones save a checkpoint first.

    \b
    Example: hpcdet cancel digits-7f3a
    """
    if len(ids) > 1 and not dry_run:
        confirm(f"cancel {len(ids)} experiments or trials?")
    _ask(out, "cancel", ids, dry_run, lambda item: item["state"] in follow.ENDED, wait)


@click.command("pause", short_help="Save checkpoints, stop, and give the nodes back.")
@ids_argument()
@_dry_run()
@_wait()
@output("pause")
def pause_command(out: Output, ids: Sequence[str], dry_run: bool, wait: bool) -> None:
    """Stop experiments or trials (ID/3) at a checkpoint; ``resume`` goes on from there.

    \b
    Example: hpcdet pause digits-7f3a --wait
    """
    halted = {*follow.ENDED, "PAUSED"}
    _ask(out, "pause", ids, dry_run, lambda item: item["state"] in halted, wait)


@click.command("resume", short_help="Go on with what was paused.")
@ids_argument()
@_dry_run()
@output("resume")
def resume_command(out: Output, ids: Sequence[str], dry_run: bool) -> None:
    """Go on with paused experiments or trials (ID/3), from their latest checkpoints.

    \b
    Example: hpcdet resume digits-7f3a
    """
    _ask(out, "resume", ids, dry_run)


@click.command("retry", short_help="Try failed trials again from their checkpoints.")
@ids_argument()
@_dry_run()
@output("retry")
def retry_command(out: Output, ids: Sequence[str], dry_run: bool) -> None:
    """Give trials that were given up another chance, with all their restarts.

    \b
    Example: hpcdet retry digits-7f3a/3
    """
    _ask(out, "retry", ids, dry_run)


@click.command("tag", short_help="Add or remove labels.")
@ids_argument()
@click.option("--add", multiple=True, metavar="LABEL", help="Add a label (repeat for more).")
@click.option("--rm", multiple=True, metavar="LABEL", help="Remove a label (repeat for more).")
@_dry_run()
@output("tag")
def tag_command(
    out: Output, ids: Sequence[str], add: Sequence[str], rm: Sequence[str], dry_run: bool
) -> None:
    """Add labels to experiments or remove them, also after their end.

    \b
    Example: hpcdet tag digits-7f3a --add paper --rm draft
    """
    if not add and not rm:
        raise UsageError("no label given", hint="--add LABEL or --rm LABEL")

    def act(found: find.Reference) -> str:
        if not dry_run:
            commands.ask(found.paths, "tag", add=list(add), rm=list(rm))
        return " ".join([*(f"+{label}" for label in add), *(f"-{label}" for label in rm)])

    each(out, "tag", ids, act, dry_run)


def _ask(
    out: Output,
    verb: commands.Verb,
    ids: Sequence[str],
    dry_run: bool,
    done: follow.Done = lambda item: True,
    wait: bool = False,
) -> None:
    """Ask, then turn the crank once so that it happens even where nobody else is alive."""
    asked: list[ExperimentPaths] = []

    def act(found: find.Reference) -> str:
        if dry_run:
            return f"would {verb}"
        number = commands.ask(found.paths, verb, found.trial)
        asked.append(found.paths)
        _turn_once(found.paths)
        return f"asked (command {number})"

    each(out, verb, ids, act, dry_run)
    if wait and asked:
        with follow.following([paths.id for paths in asked]), cranks(asked, "wait") as all_of_them:
            follow.until(asked, done, turn=lambda: _turn_all(all_of_them))


def _turn_all(all_of_them: list[Crank]) -> None:
    for crank in all_of_them:
        crank.turn_if_due()


def _turn_once(paths: ExperimentPaths) -> None:
    """What was asked stands in a file already; trouble here only delays it."""
    try:
        with Crank(paths, "command") as crank:
            crank.turn()
    except (HpcdetError, OSError) as error:
        settings().warn(f"asked, but nothing is done yet: {error}")
