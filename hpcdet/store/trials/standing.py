"""The standing of a trial, from its files alone: whether it may be claimed now.

Worker and controller derive the same standing from the same files, so that neither has to inform
the other.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeVar

from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.layout import CHECKPOINT_NAME, TrialPaths
from hpcdet.store.folder.records import NO_FAULT, Claim, Control, End, Reason, Trial, Verdict
from hpcdet.store.fs import packed
from hpcdet.store.trials.controls import accepted

State = Literal["running", "paused", "stopped", "failed", "done", "doubtful", "runnable"]

MANIFEST = "MANIFEST.json"
"""The file whose presence makes a checkpoint's folder a checkpoint."""

IDLE_ENDS = 3
"""Ends without progress in a row after which the holder of the lease has to judge."""


@dataclass(frozen=True)
class Standing:
    """The standing of a trial; its states are in the table of ``docs/reference/files.md``.

    Attributes:
        attempts: attempts that were claimed.
        open_attempt: number of the attempt that runs now; 0 if none.
        next_attempt: number to claim next.
        batches: batches the trial is known to have trained, by verdicts and checkpoints.
        failures: ends by the user's code (``user_error``, ``oom``), over all attempts.
        idle_ends: ends without a fault and without progress, in a row, up to the last.
        last_end: why the newest ended attempt is over.
        since: only workers of this submission or a later one may claim it.
    """

    state: State
    attempts: int = 0
    open_attempt: int = 0
    next_attempt: int = 1
    batches: int = 0
    failures: int = 0
    idle_ends: int = 0
    last_end: End | None = None
    since: int = 0


@dataclass(frozen=True)
class AttemptFiles:
    """The records of one attempt, each read at its first use."""

    paths: AttemptPaths

    @property
    def number(self) -> int:
        return self.paths.number

    @cached_property
    def claim(self) -> Claim | None:
        return Claim.read(self.paths.claim)

    @cached_property
    def end(self) -> End | None:
        return End.read(self.paths.end)

    @cached_property
    def verdict(self) -> Verdict | None:
        return Verdict.read(self.paths.verdict)


Attempt = TypeVar("Attempt", bound=AttemptFiles)


@dataclass(frozen=True)
class TrialFiles:
    """The records of one trial, each read at its first use."""

    paths: TrialPaths

    @property
    def number(self) -> int:
        return self.paths.number

    @cached_property
    def record(self) -> Trial | None:
        return Trial.read(self.paths.record)

    @cached_property
    def controls(self) -> list[Control]:
        return accepted(self.paths)

    @property
    def control(self) -> Control | None:
        return self.controls[-1] if self.controls else None

    @cached_property
    def attempts(self) -> Sequence[AttemptFiles]:
        """The claimed attempts, ascending; a folder without a claim is the next one to claim."""
        return self._claimed(AttemptFiles)

    def _claimed(self, of: Callable[[AttemptPaths], Attempt]) -> list[Attempt]:
        found = [of(paths) for paths in self.paths.attempts()]
        # numbers are claimed in their order, so that only the newest may lack a claim
        while found and found[-1].claim is None:
            found.pop()
        return found

    @property
    def ended(self) -> list[tuple[AttemptFiles, End]]:
        """The ended attempts, ascending, without claims that were released."""
        found = ((one, one.end) for one in self.attempts)
        return [(one, end) for one, end in found if end is not None and end.reason != "released"]

    @property
    def lineage(self) -> Lineage:
        return Lineage(self.control.rewinds if self.control else [])

    @cached_property
    def standing(self) -> Standing:
        return _standing(self)


def is_over(trial: TrialPaths, attempt: AttemptPaths) -> bool:
    """True if an attempt has been closed, or the next one claimed."""
    if End.read(attempt.end) is not None:
        return True
    return Claim.read(trial.attempt(attempt.number + 1).claim) is not None


def standing(trial: TrialPaths) -> Standing:
    """Return the current standing of a trial.

    One without ``trial.json`` yet counts as paused, and so does one whose archive is damaged.
    """
    return TrialFiles(trial).standing


def _standing(trial: TrialFiles) -> Standing:
    attempts = trial.attempts
    control = trial.control or Control("run")
    newest = attempts[-1] if attempts else None
    is_open = newest is not None and newest.end is None
    ended = trial.ended
    ends = [end for _, end in ended]
    last = ends[-1] if ends and not is_open else None
    verdict = ended[-1][0].verdict if last else None
    number = newest.number if newest else 0
    facts = Standing(
        state="running",
        attempts=len(attempts),
        open_attempt=number if is_open else 0,
        next_attempt=number + 1,
        batches=batches(trial, control),
        failures=sum(end.reason in ("user_error", "oom") for end in ends),
        idle_ends=trailing_idle(ends),
        last_end=ends[-1] if ends else None,
        since=control.since,
    )
    if is_open:
        return facts
    state: State = "runnable"
    if trial.record is None or packed.damaged(trial.paths.root):
        state = "paused"  # a trial that is not, or cannot be, known must not begin
    elif control.action == "fail":
        state = "failed"
    elif last is not None and finished(last, verdict, control):
        state = "done"
    elif control.action in ("stop", "kill"):
        state = "stopped"
    elif control.action == "pause":
        state = "paused"
    elif last is not None and control.attempts < facts.next_attempt and _doubtful(last, facts):
        state = "doubtful"
    return dataclasses.replace(facts, state=state)


def claimed(trial: TrialPaths) -> list[AttemptPaths]:
    """Return the claimed attempts of a trial, ascending."""
    return [attempt.paths for attempt in TrialFiles(trial).attempts]


def reason_of(verdict: Verdict) -> Reason:
    """Return the reason of an attempt's end by its own verdict."""
    if verdict.verdict in ("fail", "norestart"):
        return "user_error"
    if verdict.verdict == "done":
        return "stopped" if verdict.cause == "stopped" else "completed"
    reasons: dict[str, Reason] = {
        "signal": "preempted",
        "walltime": "walltime",
        "paused": "paused",
        "stopped": "stopped",
        "completed": "completed",
        "unproven": "unproven",
        "refused": "refused",
        "error": "user_error",
    }
    return reasons[verdict.cause]


def checkpoints(trial: TrialPaths) -> list[str]:
    """Return the names of the committed checkpoints, oldest first: by step, then by attempt."""
    found: set[tuple[int, int, str]] = set()
    for place in trial.checkpoint_places:
        try:
            names = os.listdir(place)
        except (FileNotFoundError, NotADirectoryError):
            continue
        found |= {
            (int(match[1]), int(match[2]), name)
            for name in names
            if (match := CHECKPOINT_NAME.fullmatch(name)) and (place / name / MANIFEST).is_file()
        }
    return [name for _, _, name in sorted(found)]


def latest_checkpoint(trial: TrialPaths) -> str:
    """Return the name of the checkpoint from which the trial would go on; "" if there is none."""
    return _latest(trial, lineage(trial))


def _latest(trial: TrialPaths, line: Lineage) -> str:
    return next((name for name in reversed(checkpoints(trial)) if name in line), "")


@dataclass(frozen=True)
class Lineage:
    """The lineage of a trial: the checkpoints that still count after users' rewinds.

    ``name in lineage``: True if a checkpoint leads to the trial's current state; one that does
    not is superseded.

    Attributes:
        rewinds: see ``records.Control``.
    """

    rewinds: list[list[Any]]

    def __contains__(self, name: str) -> bool:
        return self.has(*_position(name))

    def has(self, step: int, attempt: int) -> bool:
        """True if the state of an attempt at a step still counts."""
        last: tuple[float, float] = (math.inf, math.inf)
        for target, first in reversed(self.rewinds):
            if first > last[1]:
                continue  # later than the attempt that is looked at now
            if attempt >= first:
                break
            last = _position(target)
        return attempt <= last[1] and (step, attempt) <= last


def lineage(trial: TrialPaths) -> Lineage:
    """Return the lineage of a trial by the control in force."""
    return TrialFiles(trial).lineage


def _position(name: str) -> tuple[int, int]:
    match = CHECKPOINT_NAME.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else (-1, -1)


def trailing_idle(ends: list[End]) -> int:
    """Return how many ends in a row, up to the last, brought no progress without a fault."""
    count = 0
    for end in reversed(ends):
        if end.reason not in NO_FAULT or end.progressed:
            break
        count += 1
    return count


def batches(trial: TrialFiles, control: Control) -> int:
    """Return the batches known to be trained, by the last verdict or the latest checkpoint."""
    name = _latest(trial.paths, trial.lineage)
    known = int(name.partition(".")[0]) if name else 0
    first = control.rewinds[-1][1] if control.rewinds else 0
    counted = (one for one in reversed(trial.attempts) if one.number >= first)
    verdicts = (attempt.verdict for attempt in counted)
    return max(known, next((verdict.batches for verdict in verdicts if verdict), 0))


def finished(last: End, verdict: Verdict | None, control: Control) -> bool:
    """True if the last end was a success and no greater length was requested since."""
    if last.reason == "stopped":
        return True
    if last.reason != "completed":
        return False
    reached = verdict.until if verdict else None
    asked = control.until
    if reached is None or asked is None or reached.unit != asked.unit:
        return True
    return asked.value <= reached.value


def _doubtful(last: End, facts: Standing) -> bool:
    return last.reason in ("user_error", "oom") or facts.idle_ends >= IDLE_ENDS
