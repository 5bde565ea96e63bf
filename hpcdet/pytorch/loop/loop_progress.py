"""The plan of a loop, and its progress."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from hpcdet.pytorch.api.periods import TrainUnit
from hpcdet.units import Units


@dataclass(frozen=True)
class LoopPlan:
    """The arguments of ``fit``."""

    checkpoint_period: TrainUnit | None
    validation_period: TrainUnit | None
    reporting_period: TrainUnit
    max_length: TrainUnit | None
    checkpoint_policy: Literal["best", "all", "none"]
    step_zero_validation: bool
    test_mode: bool


@dataclass
class LoopProgress:
    """How far the trial is, beside its models: a part of the saved state.

    Attributes:
        owed: the validation due here has not been finished.
        best: best value of the searcher's metric so far.
        stop: the step after which the code had asked to end, which it has not done yet.
        stopped: it has ended here because the code had asked.
    """

    units: Units = dataclasses.field(default_factory=Units)
    owed: bool = False
    best: float | None = None
    stop: int | None = None
    stopped: bool = False

    def encode(self) -> dict[str, Any]:
        stop: dict[str, Any] = {} if self.stop is None else {"stop": self.stop}
        if self.stopped:
            stop["stopped"] = True
        units = dataclasses.asdict(self.units)
        return {"units": units, "owed": self.owed, "best": self.best, **stop}

    def decode(self, state: dict[str, Any]) -> None:
        """The inverse of ``encode``, in place."""
        self.units, self.owed, self.best = Units(**state["units"]), state["owed"], state["best"]
        self.stop, self.stopped = state.get("stop"), state.get("stopped", False)
