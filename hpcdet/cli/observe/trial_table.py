"""The table of trials: its columns, which depend on the search's goals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from operator import attrgetter
from typing import Any

from hpcdet.cli.frame.output import Column
from hpcdet.read.experiment import series
from hpcdet.read.views import describe
from hpcdet.read.views.list_rows import TrialStatusView
from hpcdet.read.views.views import StatusView

_TRIAL = (
    Column("STATE", "state", cut=False),
    Column("STEPS", "steps", right=True),
    Column("BEST", "best", right=True),
    Column("AT", "best_step", right=True),
    Column("RESTARTS", "restarts", right=True, sparse=True),
    Column("PROMOTED", "promotions", right=True, sparse=True),
    Column("HYPERPARAMETERS", "hyperparameters"),
    Column("PARENT", "parent", wide=True),
    Column("SEED", "seed", wide=True, right=True),
    Column("CHECKPOINT", lambda row: row.last_checkpoint and row.last_checkpoint.name, wide=True),
    Column("WHY", lambda row: describe.brief(row.why), wide=True),
)
TRIALS = (Column("TRIAL", "trial", right=True), *_TRIAL)
_YIELDS = {"BEST", "AT", "RESTARTS", "PROMOTED"}
LS_TRIALS = (Column("ID", "id", cut=False), *_TRIAL)


def trials(item: StatusView) -> tuple[Column, ...]:
    """Return the table's columns, without hyperparameters that are the same for all trials.

    The reason of a state stands there where the search gave one: failures are told beside the
    table. Constraints and several objectives stand before them, in the place of what is left to
    the wide table then.
    """
    at = [column.title for column in TRIALS].index("HYPERPARAMETERS")
    same = describe.same_for_all(item.trials)
    before, values = TRIALS[:at], _goals(item)
    told = any(trial.why and trial.state != "ERROR" for trial in item.trials)
    if values:
        before = tuple(replace(column, wide=column.title in _YIELDS) for column in before)

    def own(trial: TrialStatusView) -> dict[str, Any]:
        return {k: v for k, v in trial.hyperparameters.items() if k not in same}

    return (
        *before,
        *values,
        Column("HYPERPARAMETERS", own if same else "hyperparameters"),
        *(replace(one, wide=one.title != "WHY" or not told) for one in TRIALS[at + 1 :]),
    )


def foremost(item: StatusView, limit: int) -> list[TrialStatusView]:
    """Return all trials if they are few, else the best, running and failed ones, then by value."""
    if len(item.trials) <= limit:
        return item.trials
    best = {one.trial for one in item.front} | ({item.best.trial} if item.best else set())

    def place(trial: TrialStatusView) -> tuple[int, float]:
        ranks = (
            trial.trial in best,
            trial.state in ("RUNNING", "STOPPING"),
            trial.state == "ERROR",
        )
        value = series.number(trial.best)
        loss = math.inf if value is None else value if item.smaller_is_better else -value
        return (ranks.index(True) if True in ranks else len(ranks), loss)

    return sorted(item.trials, key=place)[:limit]


def _goals(status: StatusView) -> tuple[Column, ...]:
    """Return the columns of the table of trials that depend on the search's goals."""
    if not describe.constrained(status) and len(status.objectives) < 2:
        return ()
    feasible = Column("FEASIBLE", lambda row: {True: "yes", False: "no"}.get(row.compared.feasible))
    front = Column("FRONT", lambda row: "front" if row.compared.on_front else None)
    return (
        *values(status, attrgetter("compared")),
        *((feasible,) if describe.constrained(status) else ()),
        *((front,) if len(status.objectives) > 1 else ()),
    )


def values(status: StatusView, beside: Callable[[Any], Any]) -> Iterator[Column]:
    """Yield a column for each objective and each constraint; ``beside``: what holds a row's."""
    bounds = next((trial.compared.constraints for trial in status.trials if trial.compared), {})
    for name in dict.fromkeys([*status.objectives, *bounds]):

        def of(row: Any, name: str = name) -> Any:
            return (beside(row).objectives | beside(row).constraints).get(name)

        yield Column(name.upper(), of, right=True)
