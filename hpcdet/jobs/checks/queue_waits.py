"""Queue waits of jobs, by earlier experiments of the same kind."""

from __future__ import annotations

import contextlib
import itertools
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from hpcdet.read.experiment.gather import Gathered, gather
from hpcdet.read.lookup import find
from hpcdet.read.lookup.all_experiments import UNREADABLE
from hpcdet.store.config.resolved_config import Resolved

ASKED = 20
"""Experiments that are looked at, the newest first."""

ENOUGH = 20
"""Waits that are taken: queues change."""


@dataclass(frozen=True)
class Waits:
    """The median wait in seconds, of how many, and the newest experiment that showed it."""

    typical_s: float
    of: int
    source: str


def former(root: Path, wanted: Resolved) -> Waits | None:
    """Queue waits of jobs with as many slots in the same partition; None without any."""
    need = wanted.allocation
    found: list[float] = []
    source = ""
    for paths in itertools.islice(reversed(find.experiments(root)), ASKED):
        with contextlib.suppress(*UNREADABLE):
            gathered = gather(paths)
            had = gathered.config.allocation
            if (had.resource_pool, had.slots_per_trial) == (
                need.resource_pool,
                need.slots_per_trial,
            ):
                seen = list(_of(gathered))
                source = source or (paths.id if seen else "")
                found += seen
        if len(found) >= ENOUGH:
            break
    return Waits(statistics.median(found), len(found), source) if found else None


def _of(gathered: Gathered) -> Iterator[float]:
    """Seconds from a submission until a task of it began, of those that might begin at once."""
    for job in gathered.jobs:
        intent, submitted = job.intent, job.submitted
        if submitted is None or not submitted.job or intent.held or intent.after or intent.hold:
            continue
        begun = sorted(
            worker.claim.at
            for worker in gathered.workers
            if worker.claim is not None
            and worker.paths.submission == job.number
            and not worker.paths.incarnation
        )
        for at in begun[: intent.throttle]:
            yield max(0.0, _epoch(at) - _epoch(submitted.at))


def _epoch(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()
