"""Training pace of trials, by an earlier experiment of the same name."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from hpcdet.read.experiment.gather import GatheredAttempt, gather
from hpcdet.read.lookup import find
from hpcdet.read.lookup.all_experiments import UNREADABLE
from hpcdet.store.config.resolved_config import Resolved


@dataclass(frozen=True)
class Throughput:
    """Seconds for one unit of length, validation and saving included; ``source`` is the origin."""

    unit_s: float
    source: str


def former(root: Path, wanted: Resolved) -> Throughput | None:
    """The pace of the newest experiment of the name with as many slots for a trial."""
    length = wanted.searcher.max_length
    if length is None:
        return None
    for paths in reversed(find.experiments(root)):
        if paths.id.rpartition("-")[0] != wanted.name:
            continue
        with contextlib.suppress(*UNREADABLE):
            gathered = gather(paths)
            if gathered.config.resources.slots_per_trial != wanted.resources.slots_per_trial:
                continue
            attempts = (attempt for trial in gathered.trials for attempt in trial.attempts)
            if found := [pace for one in attempts for pace in _of(one, length.unit)]:
                return Throughput(statistics.median(found), paths.id)
    return None


def _of(attempt: GatheredAttempt, unit: str) -> Iterator[float]:
    """Seconds per unit from the first word of an attempt on how far it is to the last."""
    told: list[tuple[int, float]] = []
    for line in (*attempt.of_kind("progress"), *attempt.of_kind("metrics")):
        units = line["units"] if line["kind"] == "metrics" else line
        if unit in units:
            told.append((int(units[unit]), datetime.fromisoformat(line["t"]).timestamp()))
    (first, begin), (last, end) = min(told, default=(0, 0)), max(told, default=(0, 0))
    waits = ((datetime.fromisoformat(w["t"]).timestamp(), w) for w in attempt.of_kind("waited"))
    waited = sum(wait["seconds"] for at, wait in waits if begin < at <= end)
    if last > first:
        yield max(0.0, end - begin - waited) / (last - first)
