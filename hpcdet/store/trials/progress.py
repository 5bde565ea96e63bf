"""The progress of an attempt: whether the next one has less left to do.

Training alone is no progress: a trial that is ended before it can save repeats the same work.
Only durable results count: a checkpoint of a later step than the one the attempt began from, or a
successful end. Code that saves its state by its own means has no checkpoints of hpcdet; it has
made progress if it reports a later step than any attempt before it.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.layout import CHECKPOINT_NAME, TrialPaths
from hpcdet.store.folder.records import End, Verdict
from hpcdet.store.fs import journal
from hpcdet.store.trials import standing


@dataclass(frozen=True)
class Progress:
    """How far an attempt got.

    Attributes:
        first_step: it trained a step: the node and the launch work.
        progressed: the next attempt begins further than this one did.
    """

    first_step: bool
    progressed: bool


def of(attempt: AttemptPaths) -> Progress:
    """Return the progress of an attempt from its end, or else from its verdict and journal."""
    end = End.read(attempt.end)
    if end is not None:
        return Progress(end.first_step or end.progressed, end.progressed)
    verdict = Verdict.read(attempt.verdict)
    lines = journal.read(attempt.journal)
    first_step = any(line["kind"] == "first_step" for line in lines)
    done = verdict is not None and verdict.verdict == "done"
    return Progress(first_step, done or _further(attempt, lines))


def _further(attempt: AttemptPaths, lines: list[journal.Line]) -> bool:
    start = next((line for line in lines if line["kind"] == "start"), {})
    scratch = attempt.scratch.parent.parent if attempt.scratch else None
    trial = TrialPaths(attempt.root.parent.parent, attempt.trial, scratch)
    saved = max(_last(lines, "checkpoint"), _committed(trial, attempt.number))
    if saved >= 0 or start.get("checkpoint"):
        return saved > int(start.get("batches", 0))
    reported = _last(lines, "metrics")
    before = [one for one in trial.attempts() if one.number < attempt.number]
    # the newest first: where there was progress, it is further than all the others
    return reported > 0 and all(
        _last(journal.read(one.journal), "metrics") < reported for one in reversed(before)
    )


def _committed(trial: TrialPaths, attempt: int) -> int:
    """Return the latest step of an attempt's committed checkpoints; -1 if there is none.

    Ranks that die right after a commit have no time to journal it.
    """
    found = (CHECKPOINT_NAME.fullmatch(name) for name in standing.checkpoints(trial))
    return max((int(m[1]) for m in found if m and int(m[2]) == attempt), default=-1)


def _last(lines: list[journal.Line], kind: str) -> int:
    """Return the latest step of the records of a kind; -1 if there is none."""
    return max((int(line["step"]) for line in lines if line["kind"] == kind), default=-1)
