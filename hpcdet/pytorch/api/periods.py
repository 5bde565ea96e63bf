"""Periods and lengths as Determined writes them: ``Batch(100)``, ``Epoch(1)``, ``Record(5000)``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from hpcdet.errors import ConfigError
from hpcdet.units import Length, Unit, Units


class TrainUnit:
    """A number of batches, records or epochs, or a list of such: a schedule.

    As a period, a number means "each time so much more is done", a list "at these points".
    """

    unit: ClassVar[Unit]

    def __init__(self, value: int | Sequence[int]) -> None:
        points = [value] if isinstance(value, int) else sorted(value)
        if not points or min(points) < 1:
            raise ConfigError(
                f"{type(self).__name__}({value!r}) is not a period", hint="use whole numbers from 1"
            )
        self.value = value if isinstance(value, int) else points

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.value == other.value

    def __hash__(self) -> int:
        return hash(repr(self))

    def due(self, before: Units, after: Units) -> bool:
        """Whether the step from ``before`` to ``after`` passed a point of this period."""
        old, new = getattr(before, self.unit), getattr(after, self.unit)
        if isinstance(self.value, int):
            return bool(new // self.value > old // self.value)
        return any(old < point <= new for point in self.value)

    def length(self) -> Length:
        """Convert to a length of training; for a schedule, its last point."""
        return Length(self.unit, self.value if isinstance(self.value, int) else self.value[-1])

    @staticmethod
    def of(length: Length | None) -> TrainUnit | None:
        """The period of a config; None for a period of 0, which is none."""
        if length is None or length.value == 0:
            return None
        return _KINDS[length.unit](length.value)


class Batch(TrainUnit):
    """Global batches."""

    unit = "batches"


class Record(TrainUnit):
    """Samples, over all ranks."""

    unit = "records"


class Epoch(TrainUnit):
    """Passes over the training data."""

    unit = "epochs"


_KINDS: dict[Unit, type[TrainUnit]] = {kind.unit: kind for kind in (Batch, Record, Epoch)}
