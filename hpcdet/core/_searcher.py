"""``context.searcher``: how long to train."""

from __future__ import annotations

from collections.abc import Iterator

from hpcdet.core._modes import SearcherMode, Unit
from hpcdet.core._train import TrainContext
from hpcdet.train.session import Session
from hpcdet.units import Length


class SearcherOperation:
    """Train until ``length`` (in the searcher's unit)."""

    def __init__(self, session: Session, length: Length) -> None:
        self._session = session
        self.length = length.value
        self.unit = length.unit

    def report_progress(self, length: float) -> None:
        """How much of ``length`` is done."""
        fraction = length / self.length if self.length else 1.0
        self._session.tracker.record("fraction", value=float(fraction))

    def report_completed(self, searcher_metric: float) -> None:
        """Determined's; report validation metrics instead."""


class SearcherContext:
    """The searcher's wish for this trial."""

    def __init__(self, session: Session, train: TrainContext) -> None:
        self._session = session
        self._train = train

    @property
    def until(self) -> Length | None:
        """Length at which this trial ends; None if nobody has said. It may grow meanwhile."""
        return self._session.until

    def length(self, default: int) -> int:
        """The value of ``until``, or a default where nobody has said."""
        return self._session.until.value if self._session.until else default

    def operations(
        self,
        searcher_mode: SearcherMode = SearcherMode.WorkersAskChief,
        auto_ack: bool = True,
    ) -> Iterator[SearcherOperation]:
        """The one operation of this attempt, if a length is known; the arguments change nothing."""
        if self._session.until is not None:
            yield SearcherOperation(self._session, self._session.until)

    def get_configured_units(self) -> Unit | None:
        """The unit of the length, if one is known."""
        return Unit[self._session.until.unit.upper()] if self._session.until else None

    def acknowledge_out_of_ops(self) -> None:
        """Determined's; leaving the ``with`` block is what counts."""
