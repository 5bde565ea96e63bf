"""The cached journals of trials, read on from where the last turn stopped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hpcdet.search.api import events
from hpcdet.store.config.overrides import Slots
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.cost.spending import epoch, stretch
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.folder.records import Claim, End
from hpcdet.store.fs import journal
from hpcdet.store.fs.journal import Line
from hpcdet.units import UNITS, Length, Unit


@dataclass(frozen=True)
class _Cost:
    """The slots of an attempt and its epoch seconds; ``slots`` is 0 if it never ran."""

    slots: int = 0
    start: float = 0.0
    end: float | None = None
    ended: bool = False

    @classmethod
    def of(cls, claim: Claim | None, end: End | None, slots: Slots) -> _Cost:
        found = stretch(claim, end, slots)
        if found is None:
            return cls(ended=end is not None)
        return cls(found.slots, found.start, found.end, end is not None)

    def until(self, time: float) -> float:
        """Return the slot-seconds up to a time; never negative, though hosts' clocks may differ."""
        return round(self.slots * max(0.0, time - self.start), 3)

    @property
    def whole(self) -> float:
        return self.slots * max(0.0, (self.end or self.start) - self.start)


@dataclass
class JournalFacts:
    """Readers of the journals of one experiment's attempts."""

    paths: ExperimentPaths
    resolved: Resolved
    _readers: dict[tuple[int, int], journal.Reader] = field(default_factory=dict)
    _costs: dict[tuple[int, int], _Cost] = field(default_factory=dict)
    _parts: dict[tuple[int, int], Line] = field(default_factory=dict)
    _slots: Slots = field(init=False)

    def __post_init__(self) -> None:
        self._slots = Slots(self.paths, self.resolved)
        self._goals = self.resolved.searcher.goals

    def reports(
        self,
        trial: TrialPaths,
        unit: Unit,
        told: int,
        running: int = 0,
        *,
        only_running: bool = False,
    ) -> Iterator[events.Report]:
        """Yield a trial's validation reports that are new to the searcher, in order of length.

        Those without a number for the searcher's metric are included: the searcher handles them.
        After a restart an attempt repeats training that a former one has reported; each length
        is reported once.

        Args:
            told: greatest length that the searcher has a report of.
            running: the attempt that has not ended, if any.
            only_running: nothing can be new in the others.
        """
        numbers = range(1, running + 1) if only_running else trial.numbers()
        before = 0.0  # slot-seconds of the former attempts
        for number in numbers:
            key = (trial.number, number)
            cost = self._cost(trial, number, running)
            total, before = before, before + cost.whole
            if only_running and number != running:
                continue
            lines = self._reader(trial, number).read("metrics", loose=only_running)
            for line, length in self._whole(key, lines, unit, ended=number != running):
                if length is not None and length.value > told:
                    told = length.value
                    seconds = total + cost.until(epoch(line["t"]))
                    yield events.Report(trial.number, length, scalars(line["metrics"]), seconds)

    def _reader(self, trial: TrialPaths, number: int) -> journal.Reader:
        key = (trial.number, number)
        known = self._readers.get(key)
        if known is None:
            known = self._readers[key] = journal.Reader(trial.attempt(number).journal)
        return known

    def _whole(
        self, key: tuple[int, int], lines: list[Line], unit: Unit, *, ended: bool
    ) -> list[tuple[Line, Length | None]]:
        """Yield validations with the trial's length, each once it is complete.

        Code may report several times at one length; a report that lacks a metric of the searcher's
        waits for the next one at a greater length, or the end, before it is used as it is.
        """
        if not lines and not ended:
            return []
        found: list[tuple[Line, Length | None]] = []
        part = self._parts.pop(key, None)
        for line in lines:
            if line["group"] != "validation":
                continue
            if part is not None and part["step"] == line["step"]:
                line = {**line, "metrics": {**part["metrics"], **line["metrics"]}}
            elif part is not None:
                found.append((part, length_of(part, unit)))
            part = None
            length = length_of(line, unit)
            if not self._goals.lacking(line["metrics"], length.value if length else 0):
                found.append((line, length))
            else:
                part = line
        if part is not None and ended:
            found.append((part, length_of(part, unit)))
        elif part is not None:
            self._parts[key] = part
        return found

    def _cost(self, trial: TrialPaths, number: int, running: int) -> _Cost:
        """Return the cost of an attempt; of one that has not ended, with its start."""
        key = (trial.number, number)
        known = self._costs.get(key)
        if known is None or not (known.ended or number == running):
            attempt = trial.attempt(number)
            claim, end = Claim.read(attempt.claim), End.read(attempt.end)
            known = self._costs[key] = _Cost.of(claim, end, self._slots)
        return known

    def forget(self, trial: int) -> None:
        """Forget a trial's journals, to read them from the beginning again."""
        for key in [key for key in self._readers if key[0] == trial]:
            del self._readers[key]
            self._parts.pop(key, None)


def length_of(line: journal.Line, unit: Unit) -> Length | None:
    """Return a trial's length at a line of metrics in the searcher's unit; None if unknown."""
    units = line.get("units") or {}
    if unit in units:
        return Length(unit, int(units[unit]))
    return Length("batches", int(line["step"])) if unit == UNITS[0] else None


_NUMBERS = (int, float)
_SPECIAL = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def scalars(metrics: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers among metrics, with NaN and infinities restored from text."""
    found = {}
    for name, stored in metrics.items():
        value = _SPECIAL.get(stored, stored) if isinstance(stored, str) else stored
        if isinstance(value, _NUMBERS) and not isinstance(value, bool):
            found[name] = value
    return found
