"""``best``: the best trial or the front of several objectives, also for other verbs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click

from hpcdet.cli.frame.ids import ids_argument, references
from hpcdet.cli.frame.output import Column, Output, output, text
from hpcdet.cli.frame.settings import settings
from hpcdet.read.views import views
from hpcdet.read.views.trials import ComparisonView, LastCheckpointView, TrialStatusView
from hpcdet.read.views.views import StatusView
from hpcdet.store.folder.records import ExperimentState


@dataclass(frozen=True)
class BestTrialView:
    """The best trial, or one of the front of several objectives."""

    id: str
    """The trial, as ``ID/3``."""
    trial: int
    """Its number."""
    state: ExperimentState
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
    """The best trial of experiments; with several objectives all that no other one beats in all.

    Only trials that keep the constraints are named. Trials are compared at the greatest length at
    which one of these has reported.

    \b
    Example: hpcdet best digits-7f3a -o json
    """
    items: list[BestTrialView] = []
    columns: tuple[Column, ...] = ()
    for reference in references(ids):
        status = views.status(reference.paths)
        found = list(_found(status))
        items += found
        columns = (*columns, *(one for one in _values(status) if one not in columns))
        if not found:
            settings().note(_none(status))
    shown = (
        Column("ID", "id", cut=False),
        Column("STATE", "state"),
        Column("STEP", "step", right=True),
        *columns,
        Column("HYPERPARAMETERS", "hyperparameters", fold=True),
    )
    out.emit(items, shown)


def _found(status: StatusView) -> Iterator[BestTrialView]:
    """Yield the trials of the front, else the best one."""
    rows = {row.trial: row for row in status.trials}
    leaders = [(one.trial, one.step, one.compared) for one in status.front]
    if not leaders and (best := status.best) is not None:
        alone = ComparisonView(None, None, {status.metric: best.value}, {}, False)
        leaders = [(best.trial, best.step, alone)]
    for number, step, values in leaders:
        trial = rows[number]
        yield BestTrialView(
            trial.id,
            number,
            trial.state,
            trial.hyperparameters,
            trial.last_checkpoint,
            step,
            values.objectives,
            values.constraints,
        )


def lines(status: StatusView) -> list[str]:
    """Return the lines of a headline on the best trial and the front, or that there is none."""
    best, several = status.best, len(status.objectives) > 1
    if best is None:
        return [f"  {_none(status)}"] if status.nearest else []
    at = f"trial {best.trial}, step {best.step}"
    label = "best feasible" if _constrained(status) else "best"
    said = [f"  {label} {status.metric} {text(best.value)} ({at})"]
    if several:
        front = [str(one.trial) for one in status.front]
        named = ", ".join(front[:20]) + (" …" if len(front) > 20 else "")
        said.append(f"  front of {', '.join(status.objectives)}: trials {named}")
    return said


def columns(status: StatusView) -> tuple[Column, ...]:
    """Return the columns of the table of trials that depend on the search's goals."""
    if not _constrained(status) and len(status.objectives) < 2:
        return ()
    feasible = Column("FEASIBLE", lambda row: {True: "yes", False: "no"}.get(row.compared.feasible))
    front = Column("FRONT", lambda row: "front" if row.compared.on_front else None)
    return (
        *_values(status),
        *((feasible,) if _constrained(status) else ()),
        *((front,) if len(status.objectives) > 1 else ()),
    )


def _constrained(status: StatusView) -> bool:
    return any(trial.compared and trial.compared.constraints for trial in status.trials)


def _values(status: StatusView) -> list[Column]:
    """Return a column for each objective and each constraint."""
    beside = [trial.compared for trial in status.trials if trial.compared]
    bounds = beside[0].constraints if beside else {}
    found = [Column(n.upper(), _Value("objectives", n), right=True) for n in status.objectives]
    return found + [
        Column(name.upper(), _Value("constraints", name), right=True)
        for name in bounds
        if name not in status.objectives
    ]


@dataclass(frozen=True)
class _Value:
    """A look-up of a value inside a row."""

    part: str
    name: str

    def __call__(self, row: TrialStatusView | BestTrialView) -> Any:
        held = row.compared if isinstance(row, TrialStatusView) else row
        return getattr(held, self.part).get(self.name)


def _none(status: StatusView) -> str:
    """Return why there is no best trial."""
    nearest = status.nearest
    if nearest is None:
        return f"{status.id}: no trial has a value of {status.metric} yet"
    values = nearest.compared.objectives | nearest.compared.constraints
    said = ", ".join(f"{name} {text(value)}" for name, value in values.items())
    return f"no trial is feasible; nearest: trial {nearest.trial} ({said}), infeasible"
