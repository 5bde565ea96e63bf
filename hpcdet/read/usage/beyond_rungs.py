"""Training of trials beyond a rung before the decision on it reached them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from hpcdet.read.experiment.gather import Gathered, GatheredAttempt, Line


@dataclass(frozen=True)
class Beyond:
    """One decision that a trial leaves, measured from the report on which it was made.

    Attributes:
        rung: length at which the trial reported, in the search's unit.
        batches: that it trained after that, until it left or ended by itself, or until now.
        seconds: likewise, from the report.
        heard: True if the decision reached the trial before its end; ``seconds`` is then the time
            that decisions take.
        passed: number of rungs at which it reported meanwhile.
    """

    trial: int
    rung: int
    batches: int
    seconds: float
    heard: bool
    passed: int


def beyond(gathered: Gathered) -> list[Beyond]:
    """Return a row for each pause and stop that the search decided on the trial's own report."""
    attempts = {trial.number: trial.attempts for trial in gathered.trials}
    rungs = [rung.value for rung in gathered.config.searcher.rungs]
    found = []
    for trial, unit, length in _leaving(gathered):
        for attempt in attempts.get(trial, ()):
            reports = _reports(attempt, unit)
            line = next((line for at, line in reports if at == length), None)
            if line is not None:
                later = [at for at, _ in reports if at > length and at in rungs]
                found.append(_beyond(trial, length, attempt, line, len(later)))
                break
    return found


def trained(attempts: Sequence[GatheredAttempt]) -> int:
    """Return the batches of all attempts together, repeated ones included."""
    begun = (next(attempt.of_kind("start"), {}).get("batches", 0) for attempt in attempts)
    pairs = zip(attempts, begun, strict=True)
    return sum(max(0, (attempt.position or begin) - begin) for attempt, begin in pairs)


def wait_s(decision_s: float) -> int:
    """Return a limit for waits at rungs that suffices for most decisions, in whole seconds."""
    return max(5, round(3 * decision_s))


def _leaving(gathered: Gathered) -> Iterator[tuple[int, str, int]]:
    """Yield trial, unit and length of each report on which the search let that trial leave."""
    last: dict[str, object] = {}
    for line in gathered.decisions:
        if line["kind"] == "event":
            last = line["event"]
        elif line["kind"] == "action" and last.get("kind") == "report":
            action, trial, length = line["action"], last.get("trial"), last.get("length")
            leaves = action.get("kind") in ("pause", "stop") and action.get("trial") == trial
            if leaves and isinstance(trial, int) and isinstance(length, dict):
                for unit, value in length.items():
                    yield trial, str(unit), int(value)


def _reports(attempt: GatheredAttempt, unit: str) -> list[tuple[int, Line]]:
    lines = (line for line in attempt.of_kind("metrics") if line["group"] == "validation")
    return [(int((line.get("units") or {}).get(unit, -1)), line) for line in lines]


def _beyond(trial: int, length: int, attempt: GatheredAttempt, report: Line, passed: int) -> Beyond:
    notices = attempt.of_kind("notice")
    told = next((line for line in notices if line["signal"] in ("paused", "stopped")), None)
    left = told["t"] if told is not None else attempt.heard
    seconds = _at(left) - _at(report["t"])
    batches = max(0, (attempt.position or report["step"]) - report["step"])
    return Beyond(trial, length, batches, round(max(0.0, seconds), 3), told is not None, passed)


def _at(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()
