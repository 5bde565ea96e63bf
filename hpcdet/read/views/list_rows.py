"""Rows of lists, experiments and trials: views alone, as what makes them is much to import."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from hpcdet.read.views.items import OPTIONAL, ViewPart
from hpcdet.store.folder.records import ExperimentState, TrialState
from hpcdet.units import Length


@dataclass(frozen=True)
class ExperimentView:
    """An experiment in a list."""

    id: str
    """Its id: the name of its folder."""
    name: str
    """Its name."""
    description: str
    """Its description; "" without one."""
    state: ExperimentState
    """Its state."""
    why: str
    """The reason of its state; "" if none is recorded."""
    trials: int
    """Number of trials made."""
    done: int
    """Of these, ended."""
    progress: float
    """How much of all training the config allows is done, from 0 to 1; trials that were stopped
    early count as trained in full, and an experiment that has ended well is done."""
    metric: str
    """The metric that it looks at: the first objective."""
    best: Any
    """The best value of that, with constraints of a feasible trial; null before any has one."""
    best_trial: int | None
    """The trial that has it; null without one."""
    created: str
    """When it was made."""
    age_s: float = field(compare=False)
    """Seconds since then."""
    project: str
    """``workspace/project``; "" without one."""
    user: str
    """Who made it."""
    owner: str
    """The user that its folder belongs to."""
    labels: list[str]
    """Its labels."""
    path: str
    """Its folder."""


@dataclass(frozen=True)
class ComparisonView(ViewPart):
    """A trial beside the others, of a search with constraints or several objectives."""

    feasible: bool | None
    """True if it keeps all constraints; null without constraints, or if that is not known."""
    violation: float | None
    """How far it is from that, 0 if it does; null likewise."""
    objectives: dict[str, Any]
    """Value of each objective in the report by which it is compared."""
    constraints: dict[str, Any]
    """Value of each constrained metric in that report."""
    on_front: bool
    """True if no feasible trial is better in all objectives."""


@dataclass(frozen=True)
class LastCheckpointView:
    """The newest checkpoint of a trial."""

    name: str
    """The name of its folder."""
    step: int
    """Batches the trial had trained."""
    time: str
    """When it was saved."""


@dataclass(frozen=True)
class TrialStatusView:
    """A trial."""

    id: str
    """``ID/3``: the experiment's id and the trial's number."""
    trial: int
    """Its number, from 1."""
    state: TrialState
    """Its state."""
    steps: int
    """Batches trained."""
    best: Any
    """The best value of the first objective in a report that keeps the constraints; null without
    one."""
    best_step: int | None
    """Batches trained at that report."""
    restarts: int
    """Attempts after one that was cut short: preempted, lost, an error, ..."""
    promotions: int
    """Times the search let it go on after a pause, or when it had come to its target."""
    failures: int
    """Attempts that ended by an error of the code."""
    attempts: int
    """Number of attempts."""
    why: str
    """The reason of its state; "" if none is recorded."""
    until: Length | None
    """The length at which it is to end; null: as long as the code says."""
    hyperparameters: dict[str, Any]
    """Its hyperparameters, nested as in the config."""
    seed: int | None
    """Its seed; null if it is not known, of an imported experiment."""
    parent: str
    """The trial that it began from, as ``3@400 batches``; "" if it began from nothing."""
    origin: dict[str, Any]
    """The checkpoint that it began from: ``checkpoint``, ``root``, ``name``, ``digest``,
    ``units``; empty without one."""
    last_checkpoint: LastCheckpointView | None
    """Its newest checkpoint; null without one."""
    start: str
    """Start of its first attempt; "" before it."""
    end: str
    """End of its newest attempt; "" while it runs, or before it."""
    compared: ComparisonView | None = field(default=None, metadata=OPTIONAL)
    """Only with constraints or several objectives."""


def age_s(made: str) -> float:
    """Return the seconds since an experiment was made."""
    if not made:
        return 0.0
    return round(max(0.0, time.time() - datetime.fromisoformat(made).timestamp()), 3)
