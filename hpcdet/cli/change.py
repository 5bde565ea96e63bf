"""``set``: change the limits of an experiment that runs."""

from __future__ import annotations

from collections.abc import Sequence

import click

from hpcdet.cli.asking import can_run
from hpcdet.cli.bulk import each
from hpcdet.cli.crank import Crank
from hpcdet.cli.ids import complete
from hpcdet.cli.output import Output, output
from hpcdet.cli.settings import settings
from hpcdet.config import changing
from hpcdet.control import commands
from hpcdet.errors import HpcdetError, UsageError
from hpcdet.read import find, gather
from hpcdet.store.layout import ExperimentPaths


@click.command("set", short_help="Change the limits of experiments that run.")
@click.argument(
    "words", nargs=-1, required=True, metavar="ID... KEY=VALUE...", shell_complete=complete
)
@click.option("-n", "--dry-run", is_flag=True, help="Only say what would be done.")
@output("set")
def set_command(out: Output, words: Sequence[str], dry_run: bool) -> None:
    """Change what may still be changed: how many trials run at once, the walltime of later jobs.

    Running trials are left alone; what is set holds for what is started from now on. Keys that
    would make it another experiment are refused.

    \b
    Example: hpcdet set digits-7f3a max_concurrent=4
    """
    ids = [word for word in words if "=" not in word]
    wanted = changing.changes([word for word in words if "=" in word])
    if not ids:
        raise UsageError("no id given", hint="hpcdet ls shows them")
    if not wanted:
        raise UsageError("nothing to set", hint="hpcdet set ID max_concurrent=4")
    said = " ".join(f"{key}={value}" for key, value in wanted.items())

    def act(found: find.Reference) -> str:
        if found.trial:
            raise UsageError("limits are those of a whole experiment", where=str(found))
        can_run(gather.gather(found.paths), wanted)
        if dry_run:
            return f"would set {said}"
        number = commands.ask(found.paths, "set", **wanted)
        _turn(found.paths)
        return f"asked (command {number}): {said}"

    each(out, "set", ids, act, dry_run)


def _turn(paths: ExperimentPaths) -> None:
    """What was asked stands in a file already; trouble here only delays it."""
    try:
        with Crank(paths, "command") as crank:
            crank.turn()
    except (HpcdetError, OSError) as error:
        settings().warn(f"asked, but nothing is done yet: {error}")
