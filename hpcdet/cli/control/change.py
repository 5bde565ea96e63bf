"""``set``: change the limits of an experiment that runs."""

from __future__ import annotations

from collections.abc import Sequence

import click

from hpcdet.cli.frame.bulk import ActionView, each
from hpcdet.cli.frame.ids import complete
from hpcdet.cli.frame.output import Output, output
from hpcdet.cli.frame.settings import settings
from hpcdet.cli.request import extending
from hpcdet.cli.request.send_commands import can_run, turn_until_somebody_works
from hpcdet.cli.request.take_turn import CommandCrank
from hpcdet.config.load import changing
from hpcdet.control.requests import commands
from hpcdet.errors import HpcdetError, UsageError
from hpcdet.read.experiment import changes, gather
from hpcdet.read.lookup import find
from hpcdet.store.folder.layout import ExperimentPaths


@click.command("set", short_help="Change the limits of experiments that run.")
@click.argument(
    "words", nargs=-1, required=True, metavar="ID... KEY=VALUE...", shell_complete=complete
)
@extending.options
@click.option("-n", "--dry-run", is_flag=True, help="Only print what would be done.")
@output("set", ActionView)
def set_command(
    out: Output, words: Sequence[str], more_trials: int | None, longer: str | None, dry_run: bool
) -> None:
    """Change what may still be changed: how many trials run at once, the walltime of later jobs.

    Running trials are left alone; what is set holds for what is started from now on. Keys that
    would make it another experiment are refused. With more trials or longer ones, a search that
    is over goes on.

    \b
    Examples: hpcdet set digits-7f3a max_concurrent=4
              hpcdet set digits-7f3a --more-trials 16 --longer 40epochs
    """
    ids = [word for word in words if "=" not in word]
    wanted = changing.changes([word for word in words if "=" in word])
    if not ids:
        raise UsageError("no id given", hint="hpcdet ls shows them")
    if not (wanted or more_trials or longer):
        raise UsageError("nothing to set", hint="hpcdet set ID max_concurrent=4")

    def act(found: find.Reference) -> str:
        if found.trial:
            raise UsageError("limits apply to a whole experiment, not to a trial", where=str(found))
        number = 0
        while not number:
            follows = commands.following(found.paths) if more_trials else 0
            gathered = gather.gather(found.paths)
            further = extending.wanted(gathered, more_trials, longer)
            changed = {**wanted, **further}
            extending.possible(gathered, changed)
            goes_on = extending.further(gathered, changed)
            can_run(gathered, changed)
            said = " ".join(changes.assigned(changed))
            if dry_run:
                return f"would set {said}"
            number = commands.ask(found.paths, "set", reopen=goes_on, number=follows, **changed)
        if goes_on and gathered.closed is not None:
            turn_until_somebody_works(found.paths)
        else:
            _turn(found.paths)
        return f"asked (command {number}): {said}"

    each(out, "set", ids, act, dry_run)


def _turn(paths: ExperimentPaths) -> None:
    """Make a turn so that a recorded command takes effect; an error only delays it."""
    try:
        with CommandCrank(paths, "command") as crank:
            crank.turn()
    except (HpcdetError, OSError) as error:
        settings().warn(f"command recorded, but not carried out yet: {error}")
