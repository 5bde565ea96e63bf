"""``context.searcher``: how long to train."""

from __future__ import annotations

from collections.abc import Iterator

from hpcdet.core._preempt import SearcherMode, Unit
from hpcdet.core._train import TrainContext
from hpcdet.train.attempt.session import Session
from hpcdet.units import Length


class SearcherOperation:
    """Train until ``length`` (in the searcher's unit)."""

    def __init__(self, session: Session, train: TrainContext, length: Length) -> None:
        self._session = session
        self._train = train
        self._wanted = length
        self.length = length.value
        self.unit = length.unit

    def report_progress(self, length: float) -> None:
        """How much of ``length`` is done."""
        fraction = length / self.length if self.length else 1.0
        self._session.tracker.record("fraction", value=float(fraction))

    def report_completed(self, searcher_metric: float) -> None:
        """Report that the length is reached (Determined's), also where no metric shows it.

        The metric counts that was reported by ``report_validation_metrics``.
        """
        self._train.reach(self._wanted)


class SearcherContext:
    """The searcher's wish for this trial."""

    def __init__(self, session: Session, train: TrainContext) -> None:
        self._session = session
        self._train = train

    @property
    def until(self) -> Length | None:
        """Length at which this trial ends; None if there is none. It may grow meanwhile."""
        return self._session.length.until

    @property
    def horizon(self) -> Length | None:
        """The whole training, as it was submitted; None if it has no length.

        The same in every attempt, however often the trial is paused and goes on: what a schedule
        of learning rates has to span.
        """
        asked = self._session.config.searcher
        return asked.first_length or asked.max_length or self._session.length.until

    @property
    def rungs(self) -> list[Length]:
        """Where the searcher compares trials, ascending: validate, and report it, at each."""
        return self._session.length.rungs

    def length(self, default: int) -> int:
        """The value of ``until``, or a default where there is none."""
        return self._session.length.until.value if self._session.length.until else default

    def operations(
        self,
        searcher_mode: SearcherMode = SearcherMode.WorkersAskChief,
        auto_ack: bool = True,
    ) -> Iterator[SearcherOperation]:
        """Train until each of these in turn, and report a validation there.

        The rungs that the trial has not reached, then its end; none where no length is known. A
        rung that it had reached when an earlier attempt left, without a validation since, comes
        once more: nothing is to be trained up to there. The arguments change nothing.
        """
        owed = self._owed()
        for rung in self.rungs[:-1]:
            if rung == owed or not self._train.units.reached(rung):
                yield SearcherOperation(self._session, self._train, rung)
        if self._session.length.until is not None:
            yield SearcherOperation(self._session, self._train, self._session.length.until)

    def _owed(self) -> Length | None:
        """By the checkpoint alone, so that all ranks agree, whichever of them report; once."""
        units, validated = self._train.restored
        self._train.restored = units, units
        behind = [rung for rung in self.rungs[:-1] if units.reached(rung)]
        return behind[-1] if behind and not validated.reached(behind[-1]) else None

    def get_configured_units(self) -> Unit | None:
        """The unit of the length, if one is known."""
        return Unit[self._session.length.until.unit.upper()] if self._session.length.until else None

    def acknowledge_out_of_ops(self) -> None:
        """Determined's; leaving the ``with`` block is what counts."""
