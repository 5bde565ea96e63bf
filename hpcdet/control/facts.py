"""What the files of trials say, read from where the last turn stopped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hpcdet.search import api
from hpcdet.store import journal, trials
from hpcdet.store.config import Resolved
from hpcdet.store.layout import AttemptPaths, ExperimentPaths, TrialPaths
from hpcdet.store.records import End
from hpcdet.units import UNITS, Length, Unit


@dataclass
class Facts:
    """Readers of one experiment's attempts. Ends are write-once and read once."""

    paths: ExperimentPaths
    resolved: Resolved
    _readers: dict[tuple[int, int], journal.Reader] = field(default_factory=dict)
    _ends: dict[tuple[int, int], End] = field(default_factory=dict)

    def reports(self, trial: TrialPaths, unit: Unit, told: int) -> Iterator[api.Report]:
        """New validation metrics of a trial, longer than ``told``, in order of length.

        After a restart an attempt trains stretches again that a former one has reported;
        these are heard once.
        """
        metric = self.resolved.searcher.metric
        for attempt in trial.attempts():
            key = (trial.number, attempt.number)
            reader = self._readers.setdefault(key, journal.Reader(attempt.journal))
            for line in reader.read():
                if line["kind"] != "metrics" or line["group"] != "validation":
                    continue
                if metric not in line["metrics"]:
                    continue
                length = length_of(line, unit)
                if length is not None and length.value > told:
                    told = length.value
                    yield api.Report(trial.number, length, scalars(line["metrics"]))

    def forget(self, trial: int) -> None:
        """Read a trial's journals from their beginning again."""
        for key in [key for key in self._readers if key[0] == trial]:
            del self._readers[key]

    def ends(self, trial: TrialPaths) -> list[tuple[AttemptPaths, End]]:
        """The attempts of a trial that are over, ascending, without claims that were given back."""
        found = []
        for attempt in trials.claimed(trial):
            key = (trial.number, attempt.number)
            end = self._ends.get(key) or End.read(attempt.end)
            if end is not None:
                self._ends[key] = end
            if end is not None and end.reason != "released":
                found.append((attempt, end))
        return found


def length_of(line: journal.Line, unit: Unit) -> Length | None:
    """How far a trial had come at a line of metrics, in the searcher's unit if it is known."""
    units = line.get("units") or {}
    if unit in units:
        return Length(unit, int(units[unit]))
    return Length("batches", int(line["step"])) if unit == UNITS[0] else None


def scalars(metrics: dict[str, Any]) -> dict[str, Any]:
    """The numbers among metrics; NaN and infinities, stored as text, as what they are."""
    special = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
    found = {name: special.get(v, v) if isinstance(v, str) else v for name, v in metrics.items()}
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
