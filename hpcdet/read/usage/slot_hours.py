"""The slot hours of an experiment, divided by what became of them.

Every slot-second that it held is in one kind, so that all kinds but ``queued``, for which it held
nothing, add up to what it was charged: by the scheduler's accounting where that has spoken, by
hpcdet's own records elsewhere (``store.cost.budget``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields

from hpcdet.read.experiment.gather import Gathered, GatheredAttempt
from hpcdet.read.usage import costs
from hpcdet.read.usage.spans import Span, epoch, spans
from hpcdet.store.cost.budget import HOUR_S
from hpcdet.store.folder.records import NO_FAULT

KINDS = {
    "queued": "Waiting for an allocation",
    "starting": "Starting",
    "training": "Training",
    "validating": "Validating",
    "saving": "Saving",
    "idle": "Waiting at rungs",
    "lost": "Lost",
    "failed": "Failed",
    "overhead": "Without a trial",
}
"""Kinds of slot hours, as people read them; all but ``queued`` are held."""

_APART = {"validation": "validating", "checkpoint": "saving", "waiting": "idle"}
"""Phases of steps (``timing.PHASES``) that are kinds of their own."""


@dataclass(frozen=True)
class SlotHoursView:
    """Slot hours by what became of them; all but ``queued`` add up to ``allocated``."""

    queued: float
    """Waiting for allocations, which holds no slots."""
    starting: float
    """From claims to first steps."""
    training: float
    """Training that was kept."""
    validating: float
    """Validating."""
    saving: float
    """Blocked by checkpoints."""
    lost: float
    """After the last checkpoint of attempts that were preempted, timed out or lost."""
    idle: float
    """Waiting at rungs for the search."""
    failed: float
    """After the last checkpoint of attempts that ended with an error."""
    overhead: float
    """Held by workers without a trial."""
    allocated: float
    """All that was held: what the scheduler charged, or hpcdet counted."""


@dataclass(frozen=True)
class SlotPiece:
    """Slot-seconds of one kind between two moments, in epoch seconds; ``trial`` 0: of none."""

    kind: str
    trial: int
    start: float
    end: float
    slot_s: float

    def within(self, start: float, end: float) -> float:
        """Return the slot-seconds between two moments; what has no length lies at its start."""
        length = self.end - self.start
        if length <= 0:
            return self.slot_s if start <= self.start < end else 0.0
        common = min(self.end, end) - max(self.start, start)
        return self.slot_s * max(0.0, common) / length


def pieces(gathered: Gathered, now: float) -> list[SlotPiece]:
    """Return all slot-seconds of an experiment.

    Args:
        now: when what is open ends, in epoch seconds (``costs.until``).
    """
    attempts = {
        (trial.number, attempt.number): attempt
        for trial in gathered.trials
        for attempt in trial.attempts
    }
    found = [span for span in spans(gathered, now) if span.kind != "paused"]
    account = costs.account_of(gathered, now)
    held = sum(span.slot_s for span in found if span.kind != "waiting")
    scale = account.training_slot_s / held if held else 0.0
    rows = [
        SlotPiece(
            "overhead",
            0,
            row.held.start,
            now if row.held.end is None else row.held.end,
            row.overhead_slot_s,
        )
        for row in account.rows
    ]
    if not held and account.training_slot_s:  # of attempts whose journals tell nothing
        begun = account.begun or now
        rows.append(SlotPiece("overhead", 0, begun, now, account.training_slot_s))
    scaled = (
        piece
        for span in found
        for piece in _span(span, attempts.get((span.trial, span.attempt)), scale)
    )
    return [*scaled, *rows]


def added(found: Iterable[SlotPiece], start: float, end: float) -> SlotHoursView:
    """Return the slot hours of some pieces between two moments, in epoch seconds."""
    sums = dict.fromkeys((one.name for one in fields(SlotHoursView)), 0.0)
    for piece in found:
        slot_s = piece.within(start, end)
        sums[piece.kind] += slot_s
        sums["allocated"] += slot_s if piece.kind != "queued" else 0.0
    return SlotHoursView(**{kind: round(value / HOUR_S, 6) for kind, value in sums.items()})


def total(found: Iterable[SlotHoursView]) -> SlotHoursView:
    """Return the sum of several."""
    rows = list(found)
    names = [one.name for one in fields(SlotHoursView)]
    return SlotHoursView(**{n: round(sum(getattr(row, n) for row in rows), 6) for n in names})


def _span(span: Span, attempt: GatheredAttempt | None, scale: float) -> Iterator[SlotPiece]:
    """Yield the pieces of a span; ``scale``: what was charged for a slot-second that was held."""
    kind, scale = ("queued", 1.0) if span.kind == "waiting" else (span.kind, scale)
    shares: Iterable[tuple[str, float]] = [(kind, 1.0)]
    if kind == "training" and attempt is not None:
        shares = _shares(attempt, span)
    elif kind == "lost" and attempt is not None and attempt.end is not None:
        shares = [("lost" if attempt.end.reason in NO_FAULT else "failed", 1.0)]
    for name, share in shares:
        slot_s = span.slot_s * share * scale
        yield SlotPiece(name, span.trial, span.start, span.end, slot_s)


def _shares(attempt: GatheredAttempt, span: Span) -> Iterator[tuple[str, float]]:
    """Yield the shares of kept training by kind, by what all ranks recorded until its end."""
    spent = dict.fromkeys(_APART, 0.0)
    whole = 0.0
    for line in attempt.profiles:
        if epoch(line["t"]) <= span.end:
            whole += line["seconds"]
            for phase in spent:
                spent[phase] += line["phases"].get(phase, 0.0)
    whole = max(whole, span.slot_s)
    rest = 1.0
    for phase, seconds in spent.items():
        share = min(rest, seconds / whole)
        rest -= share
        yield _APART[phase], share
    yield "training", rest
