"""``set``: change the limits of an experiment that runs, or what people call it."""

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
from hpcdet.store.config import overrides
from hpcdet.store.folder.layout import ExperimentPaths


def _completed(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return ids, and keys that can be set, with a prefix."""
    keys = sorted((*overrides.ABOUT, *overrides.AT_ONCE, *overrides.LATER))
    words = [f"{key}=" for key in keys if key.startswith(incomplete)]
    return [*complete(ctx, parameter, incomplete), *words]


@click.command("set", short_help="Change limits, name, description or project.")
@click.argument(
    "words", nargs=-1, required=True, metavar="ID... KEY=VALUE...", shell_complete=_completed
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

    name, description, project and workspace are plain text, and can be changed after the end, too;
    an empty project or workspace is none. events --kind command shows every change.

    \b
    Examples: hpcdet set digits-7f3a max_concurrent=4
              hpcdet set digits-7f3a --more-trials 16 --longer 40epochs
              hpcdet set digits-7f3a project=vision description='our baseline'
    """
    ids = [word for word in words if "=" not in word]
    assignments = [word for word in words if "=" in word]
    about = changing.described(assignments)
    limits = [word for word in assignments if word.partition("=")[0].strip() not in about]
    wanted = changing.changes(limits)
    if not ids:
        raise UsageError("no id given", hint="hpcdet ls shows them")
    if not (about or wanted or more_trials or longer):
        raise UsageError("nothing to set", hint="hpcdet set ID max_concurrent=4")

    def act(found: find.Reference) -> str:
        if found.trial:
            what = "limits and names apply to a whole experiment, not to a trial"
            raise UsageError(what, where=str(found), hint=f"hpcdet set {found.paths.id} ...")
        parts = [limit(found.paths)] if wanted or more_trials or longer else []
        if about:  # last: what is refused above changes nothing
            said = " ".join(changes.assigned(about))
            if not dry_run:
                number = commands.describe(found.paths, about)
            parts.append(f"would set {said}" if dry_run else f"set (command {number}): {said}")
        return "; ".join(parts)

    def limit(paths: ExperimentPaths) -> str:
        number = 0
        while not number:
            follows = commands.following(paths) if more_trials else 0
            gathered = gather.gather(paths)
            further = extending.wanted(gathered, more_trials, longer)
            changed = {**wanted, **further}
            extending.possible(gathered, changed)
            goes_on = extending.further(gathered, changed)
            can_run(gathered, changed)
            said = " ".join(changes.assigned(changed))
            if dry_run:
                return f"would set {said}"
            number = commands.ask(paths, "set", reopen=goes_on, number=follows, **changed)
        if goes_on and gathered.closed is not None:
            turn_until_somebody_works(paths)
        else:
            _turn(paths)
        return f"asked (command {number}): {said}"

    each(out, "set", ids, act, dry_run)


def _turn(paths: ExperimentPaths) -> None:
    """Make a turn so that a recorded command takes effect; an error only delays it."""
    try:
        with CommandCrank(paths, "command") as crank:
            crank.turn()
    except (HpcdetError, OSError) as error:
        settings().warn(f"command recorded, but not carried out yet: {error}")
