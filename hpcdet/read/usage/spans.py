"""Time of trials by kind: their lives divided into spans, by claims, journals and ends."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from hpcdet.read.experiment.gather import Gathered, GatheredAttempt, GatheredTrial

WELL = frozenset({"completed", "stopped", "paused"})
"""Ends that lose nothing: the attempt saved its state when it left."""

_WAIT = frozenset({"runnable", "doubtful", "paused"})
"""Standings of trials that may go on, so that time passes for them."""

KINDS = {
    "waiting": "Waiting for an allocation",
    "paused": "Paused",
    "starting": "Starting",
    "training": "Training",
    "lost": "Lost",
}
"""Kinds of spans in the order of a trial's life, as people read them."""


@dataclass(frozen=True)
class Span:
    """A period of a trial's life; ``start`` and ``end`` in epoch seconds.

    Attributes:
        attempt: number of the attempt, or of the one that was waited for.
        slots: ranks that were busy, or waited for.
    """

    kind: str
    trial: int
    attempt: int
    start: float
    end: float
    slots: int

    @property
    def slot_s(self) -> float:
        """Slot-seconds."""
        return (self.end - self.start) * self.slots


def epoch(time: str) -> float:
    """Return the epoch seconds of an ISO time."""
    return datetime.fromisoformat(time).timestamp()


def spans(gathered: Gathered, now: float) -> list[Span]:
    """Return the spans of all trials, by trial and time. Open ones end ``now``."""
    slots = gathered.config.resources.slots_per_trial
    return [span for trial in gathered.trials for span in _of(trial, slots, now)]


def _of(trial: GatheredTrial, slots: int, now: float) -> Iterable[Span]:
    if trial.standing.state in _WAIT:
        return _trial(trial, slots, now)
    return trial.derive("spans", lambda: [*_trial(trial, slots, now)])


def _trial(trial: GatheredTrial, slots: int, now: float) -> Iterator[Span]:
    created = trial.record.created_at if trial.record else ""
    free = epoch(created) if created else None
    kind = "waiting"
    number = 0
    for attempt in trial.attempts:
        if attempt.claim is None or not attempt.claim.at:
            continue
        number = attempt.number
        claimed = epoch(attempt.claim.at)
        if free is not None:
            yield from _cut(kind, trial.number, number, [free, claimed], slots)
        end = epoch(attempt.end.at) if attempt.end and attempt.end.at else now
        yield from _attempt(attempt, claimed, end, slots)
        free = end if attempt.end else None
        # what has done all that was asked of it waits for the search, not for an allocation
        kind = "paused" if attempt.end and attempt.end.reason in WELL else "waiting"
    if free is not None and trial.standing.state in _WAIT:
        yield from _cut(kind, trial.number, number + 1, [free, now], slots)


def _attempt(attempt: GatheredAttempt, claimed: float, end: float, wanted: int) -> Iterator[Span]:
    slots = next((line["world"] for line in attempt.of_kind("start")), wanted)
    trial, number = attempt.paths.trial, attempt.number
    first = _last_time(itertools.islice(attempt.of_kind("first_step"), 1), end)
    yield from _cut("starting", trial, number, [claimed, first], slots)
    if attempt.end is None or attempt.end.reason in WELL:
        yield from _cut("training", trial, number, [first, end], slots)
        return
    saved = max(first, _last_time(attempt.of_kind("checkpoint"), first))
    yield from _cut("training", trial, number, [first, saved], slots)
    yield from _cut("lost", trial, number, [saved, end], slots)


def _last_time(lines: Iterable[dict[str, str]], default: float) -> float:
    times = [epoch(line["t"]) for line in lines]
    return times[-1] if times else default


def _cut(kind: str, trial: int, attempt: int, ends: list[float], slots: int) -> Iterator[Span]:
    """Yield a span if its length is positive; clocks of different nodes may differ slightly."""
    start, end = ends
    if end > start:
        yield Span(kind, trial, attempt, start, end, slots)


def totals(found: Iterable[Span]) -> dict[str, float]:
    """Return slot-seconds by kind, in the order of ``KINDS``."""
    sums = dict.fromkeys(KINDS, 0.0)
    for span in found:
        sums[span.kind] += span.slot_s
    return sums
