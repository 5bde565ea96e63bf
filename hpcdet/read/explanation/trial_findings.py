"""Findings on one trial: failures, restarts, what it waits for, and what it began from."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

from hpcdet import units
from hpcdet.read.experiment import changes
from hpcdet.read.experiment.gather import Gathered, GatheredTrial
from hpcdet.read.explanation.finding_view import Commands, FindingView, finding
from hpcdet.read.lookup import lineage
from hpcdet.read.views import describe, logs, timeline
from hpcdet.read.views.items import text
from hpcdet.read.views.list_rows import TrialStatusView
from hpcdet.read.views.trials import AttemptView, seconds

_WORDS = {
    "oom": "it ran out of memory; ask for more by resources.memory_per_slot",
    "user_error": "the code raised an error",
    "launch_failed": "it never reached its first step",
    "lost": "a rank or its worker vanished without a word",
    "node_fail": "a node failed",
    "unproven": "its ranks could not verify that they were connected to each other only",
    "refused": "a node does not attest what the policy requires",
    "preempted": "the scheduler took the nodes back",
    "walltime": "the allocation's time was over",
    "resized": "it had fewer nodes than it may have, and left for a job with all of them",
}

_PASSES = ("preempted", "walltime", "resized", "lost", "node_fail", "unproven", "refused")
"""Ends after which a trial only goes on."""


def said(trial: GatheredTrial, row: TrialStatusView) -> Iterator[FindingView]:
    """Find warnings in the journal of a trial's newest attempt that did not end it."""
    lines = trial.attempts[-1].lines if trial.attempts else ()
    first = {line["kind"]: line for line in reversed(lines)}
    if (line := first.get("unregistered")) is not None:
        what = "what was not registered begins anew with each attempt"
        yield finding("state", row.id, what, "", line["found"])
    if (line := first.get("not_finite")) is not None:
        what = f"not finite since step {line['step']}: {', '.join(line['names'])}"
        cure = "a lower learning rate, clipped gradients; searcher.stopping.nan ends such trials"
        yield finding("state", row.id, what, cure)


def trial(
    gathered: Gathered, row: TrialStatusView, attempts: Sequence[AttemptView], words: Commands
) -> Iterator[FindingView]:
    """Find why a trial failed, began again, or waits, and what it began from."""
    failed = [a for a in attempts if a.reason in ("user_error", "oom", "launch_failed")]
    if row.state == "ERROR" or failed:
        last = (failed or attempts)[-1:]
        reason, error = (last[0].reason, last[0].error) if last else ("", "")
        error = text(error) if error else ""
        said, why = _WORDS.get(reason, reason), text(row.why)
        traces = logs.errors(gathered.paths, row.trial, last[0].attempt) if last else []
        ranks = [[line.text for line in trace] for trace in traces]
        # other ranks complain of the one that failed
        its = [trace for trace in ranks if error in text(" ".join(trace))]
        evidence = logs.folded((its or ranks or [[]])[0])
        if its:
            why = why.removesuffix(error).rstrip(": ")  # it is its last line
        elif error not in why:
            evidence.append(error)
        if not said:
            said = why
        elif why not in ("", "-"):
            evidence.insert(0, why)
        if reason == "launch_failed" and gathered.config.distributed.backend == "mpi":
            evidence.append(
                "MPI has to support the site file's launcher: docs/guides/sites.md, Keys"
            )
        next = _after_failure(gathered, row, reason, words)
        yield finding("failure", row.id, f"{row.state}: {said}", next, evidence)
    if counts := Counter(a.reason for a in attempts if a.reason in _PASSES):
        lost = sum(_redone(a, b) for a, b in itertools.pairwise(attempts))
        whys = [f"{_WORDS[reason]} ({units.counted(n, 'time')})" for reason, n in counts.items()]
        whys += [f"promoted ({units.counted(row.promotions, 'time')})"] if row.promotions else []
        began = units.counted(len(attempts), "time")
        again = f"it began {began}: {', '.join(whys)}; {units.counted(lost, 'step')} again"
        yield finding("restart", row.id, again)
    line = timeline.passed_over(gathered, row.trial) if row.state == "PENDING" else None
    if line is not None and (not attempts or line["t"] > attempts[-1].end):
        needs = [
            f"about {units.duration(line['start_s'])} to begin",
            f"{units.duration(line['useful_s'])} to get anywhere",
            f"{units.duration(line['leave_s'])} to save and leave",
        ]
        left = units.duration(line["left_s"])
        said = f"the trial waits for another allocation: worker {line['worker']} had {left} left"
        yield finding("pending", row.id, said, "", needs)
    if row.origin:
        *parents, _ = lineage.chain(gathered, row.trial)
        ends = [f"trial {one.trial} at {one.to} {one.unit}" for one in reversed(parents)]
        said = f"it began from {row.origin['checkpoint']} of {describe.begun_from(row)}"
        evidence = [f"its parents: {', '.join(ends)}"] if parents else []
        next = f"hpcdet schedule {words.called(gathered.paths, row.trial)}"
        yield finding("origin", row.id, said, next, evidence)
    elif row.parent:
        yield finding("origin", row.id, f"it began from nothing: {row.parent} had nothing")
    if row.state == "RUNNING" and attempts and (heard := attempts[-1].last_heard):
        age = units.duration(seconds(heard, ""))
        yield finding("progress", row.id, f"at step {row.steps}, last heard {age} ago")


def _after_failure(gathered: Gathered, row: TrialStatusView, reason: str, words: Commands) -> str:
    """Return the next command after a failure; only lack of memory has a remedy of its own."""
    name = words.called(gathered.paths, row.trial)
    canceled = gathered.closed is not None and gathered.closed.state == "CANCELED"
    if row.state == "ERROR" and reason == "oom" and not canceled:
        memory = changes.effective(gathered).resources.memory_per_slot
        return f"hpcdet retry {name} --mem {'x2' if memory else '8G'}"
    if row.state == "ERROR" and gathered.closed is None:
        return f"hpcdet retry {name}"
    return f"hpcdet logs {name} --errors"


def _redone(attempt: AttemptView, following: AttemptView) -> int:
    reached, begun = attempt.steps, following.from_step
    return max(0, reached - begun) if reached is not None and begun is not None else 0
