"""How far a trial is."""

from __future__ import annotations

from dataclasses import dataclass

from hpcdet.units import Length, Unit


@dataclass(frozen=True)
class Units:
    """How far a trial is, in all three units; ``epochs`` counts completed ones."""

    batches: int = 0
    records: int = 0
    epochs: int = 0

    def reached(self, length: Length) -> bool:
        """Whether a length of training is behind."""
        return self.of(length.unit) >= length.value

    def of(self, unit: Unit) -> int:
        """How far, in one of them."""
        return int(getattr(self, unit))
