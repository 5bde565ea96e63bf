"""``best``: the best trial or the front of several objectives, also for other verbs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click

from hpcdet.cli.frame.ids import ids_argument, references
from hpcdet.cli.frame.output import Column, Output, output
from hpcdet.cli.frame.settings import settings
from hpcdet.cli.observe import trial_table
from hpcdet.read.views import describe, views
from hpcdet.read.views.list_rows import LastCheckpointView
from hpcdet.read.views.trials import BestView, RankedView
from hpcdet.read.views.views import StatusView
from hpcdet.store.folder.records import TrialState


@dataclass(frozen=True)
class BestTrialView:
    """The best trial, or one of the front of several objectives."""

    id: str
    """The trial, as ``ID/3``."""
    trial: int
    """Its number."""
    state: TrialState
    """Its state."""
    hyperparameters: dict[str, Any]
    """Its hyperparameters."""
    last_checkpoint: LastCheckpointView | None
    """Its newest checkpoint."""
    step: int
    """Batches trained at the report by which it is compared."""
    objectives: dict[str, Any]
    """Value of each objective in that report."""
    constraints: dict[str, Any]
    """Value of each constrained metric in it."""


@click.command("best", short_help="The best trial, or the front of several objectives.")
@ids_argument()
@output("best", BestTrialView)
def best_command(out: Output, ids: Sequence[str]) -> None:
    """The best trial of experiments; with several objectives the Pareto front.

    Only trials that keep the constraints are named. Trials are compared at the greatest length at
    which one of these has reported.

    \b
    Example: hpcdet best digits-7f3a -o json
    """
    items: list[BestTrialView] = []
    columns: dict[str, Column] = {}
    for reference in references(ids):
        status = views.status(reference.paths)
        items += (found := list(_found(status)))
        columns |= {one.title: one for one in trial_table.values(status, lambda row: row)}
        if not found:
            _, why = describe.best(status)
            settings().note(why if status.nearest else f"{status.id}: {why}")
    shown = (
        Column("ID", "id", cut=False),
        Column("STATE", "state"),
        Column("STEP", "step", right=True),
        *columns.values(),
        Column("HYPERPARAMETERS", "hyperparameters", fold=True),
    )
    out.emit(items, shown)


def _found(status: StatusView) -> Iterator[BestTrialView]:
    """Yield the trials of the front, else the best one."""
    rows = {row.trial: row for row in status.trials}
    leaders: Sequence[RankedView | BestView | None] = status.front or [status.best]
    for one in leaders:
        if one is None:
            return
        if isinstance(one, RankedView):
            values, bounds = one.compared.objectives, one.compared.constraints
        else:
            values, bounds = {status.metric: one.value}, {}
        of = rows[one.trial]
        about = (of.id, of.trial, of.state, of.hyperparameters, of.last_checkpoint)
        yield BestTrialView(*about, one.step, values, bounds)
