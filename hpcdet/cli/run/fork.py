"""``fork``: a new experiment that continues the search of another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from hpcdet.cli.frame.ids import id_argument
from hpcdet.cli.frame.output import Column, Output, output
from hpcdet.cli.frame.settings import settings
from hpcdet.cli.request import extending
from hpcdet.cli.request.send_commands import (
    can_run,
    can_sign,
    refuse_imported,
    turn_until_somebody_works,
)
from hpcdet.config.load import changing
from hpcdet.control.requests import ablate, fork
from hpcdet.errors import UsageError
from hpcdet.read.experiment import changes, gather
from hpcdet.read.experiment.gather import Gathered
from hpcdet.read.lookup import find

COLUMNS = (
    Column("ID", "id", cut=False),
    Column("OF", "of"),
    Column("ENDED", "ended", right=True),
    Column("GO ON", "going", right=True),
    Column("ANEW", "anew", right=True),
    Column("PATH", "path"),
)


_CONTROL = (
    "ASSURANCE NONE (ABLATION): every source changes every layer of it; use it to compare, and "
    "for nothing else"
)


@dataclass(frozen=True)
class ForkView:
    """An experiment that goes on with the search of another one."""

    id: str
    """Its id; "" if nothing was made."""
    of: str
    """The other one."""
    events: int
    """Events that its search has seen."""
    ended: int
    """Trials that have ended."""
    going: int
    """Trials that go on from a checkpoint."""
    anew: int
    """Trials that begin again."""
    begins: dict[str, str]
    """Lengths from which trials go on, by their numbers."""
    path: str
    """Its folder; "" if nothing was made."""


@click.command("fork", short_help="Go on with a search in a new experiment.")
@id_argument()
@click.option(
    "--trials",
    type=click.IntRange(min=1),
    metavar="N",
    help="From before it made more trials than N [from where it is now].",
)
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a key that does not affect results (repeatable).",
)
@extending.options
@click.option(
    "--without-routing",
    is_flag=True,
    help="The control of an ablation: from the beginning, every source trains every layer.",
)
@click.option("--name", help="Instead of the config's name.")
@click.option(
    "-n", "--dry-run", is_flag=True, help="Only print which trials would continue, and from where."
)
@output("fork", ForkView)
def fork_command(
    out: Output,
    id: str,
    trials: int | None,
    sets: Sequence[str],
    more_trials: int | None,
    longer: str | None,
    without_routing: bool,
    name: str | None,
    dry_run: bool,
) -> None:
    """Make a new experiment whose search begins where that of ID is, and queue it.

    Config, code, site and seed are the same; limits may change. Trials that have ended are there
    with all their files, others go on from their newest checkpoint that the search has heard of.
    The files are linked, not copied, and ID is left as it is.

    With --without-routing nothing is carried over: the same search begins again with the same
    seeds and keys, and its policy denies nothing. It assures NONE, and shows what routing costs:
    policy report has both side by side. The policy must say 'ablation: allowed'.

    \b
    Examples: hpcdet fork digits-7f3a --more-trials 32 -n
              hpcdet fork digits-7f3a --trials 16 --set max_concurrent=8
              hpcdet fork digits-7f3a --without-routing --name control
    """
    source = find.experiment(id, settings().root)
    gathered = gather.gather(source)
    refuse_imported(gathered)
    can_sign(gathered)
    if without_routing:
        if trials or more_trials or longer:
            hint = "--set and --name may stand beside it"
            raise UsageError("a control has the same trials", where="--without-routing", hint=hint)
        _control(out, gathered, changing.changes(sets), name, dry_run)
        return
    further = extending.wanted(gathered, more_trials, longer, trials)
    wanted = {**changing.changes(sets), **further}
    extending.possible(gathered, wanted, trials)
    can_run(gathered, wanted)
    out.expect()
    made = fork.fork(source, wanted, trials, name, dry_run)
    if not dry_run:
        turn_until_somebody_works(made.paths)
    out.emit([_item(made, source.id, dry_run)], COLUMNS, key="of" if dry_run else "id")


def _control(
    out: Output, source: Gathered, asked: Mapping[str, Any], name: str | None, dry: bool
) -> None:
    """Make the control of an ablation."""
    can_run(source, asked)
    out.expect()
    now = {one.key: one.value for one in changes.changes(source)}
    made = ablate.ablate(source.paths, {**now, **asked}, name, dry)
    if not dry:
        turn_until_somebody_works(made)
    settings().note(_CONTROL)
    anew = len(source.trials)
    id, path = ("", "") if dry else (made.id, str(made.root))
    item = ForkView(id, source.id, 0, 0, 0, anew, {}, path)
    out.emit([item], COLUMNS, key="of" if dry else "id")


def _item(made: fork.Forked, of: str, dry: bool) -> ForkView:
    id, path = ("", "") if dry else (made.paths.id, str(made.paths.root))
    begins = {str(number): str(length) for number, length in made.going.items()}
    counts = (len(made.carried), len(made.going), len(made.anew))
    return ForkView(id, of, made.events, *counts, begins, path)
