"""Findings on an experiment: its state, failures, what waits, and what is slow."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence

from hpcdet import units
from hpcdet.read.experiment import states, timing
from hpcdet.read.experiment.gather import Gathered
from hpcdet.read.explanation import trial_findings
from hpcdet.read.explanation.finding_view import Commands, FindingView, finding
from hpcdet.read.usage import beyond_rungs, costs, slot_hours
from hpcdet.read.views import describe, logs, timeline, views
from hpcdet.read.views.items import text
from hpcdet.read.views.trials import AttemptView
from hpcdet.read.views.views import StatusView
from hpcdet.store.folder import home
from hpcdet.store.objects import copy_records

_WAITS = {
    "held": "its owner holds it: hpcdet release",
    "launch": "the scheduler holds it after a failed launch: the next turn replaces it",
    "never": "it cannot start as it is: the next turn removes it and names the remedy",
    "limit": "it passes when others of its user, account or QOS have ended",
    "outage": "it starts when the partition or node is back; the scheduler shows why it is down",
    "begin_time": "it passes by itself: a requeued task waits two minutes",
}
"""What a kind of waiting means (``schedulers.common.base.Wait``)."""


def explain(gathered: Gathered, trial: int = 0, words: Commands | None = None) -> list[FindingView]:
    """Return the experiment's state, failures, what waits, the rest, and what is slow.

    Args:
        trial: only this one; 0: all.
        words: how commands name things; None: as for somebody else's root.
    """
    first, *others = _explain(gathered, trial, words or Commands())
    return [first, *sorted(others, key=lambda one: _ORDER.get(one.kind, 3))]


_ORDER = {"failure": 1, "pending": 2, "slow": 4}


def _explain(gathered: Gathered, trial: int, words: Commands) -> Iterator[FindingView]:
    item = views.status(gathered)
    why = text(item.why)
    if any(row.why and text(row.why) in why for row in item.trials):
        why = describe.shortened(why)  # that trial tells all of it
    yield finding("state", item.id, item.state + (f": {why}" if item.why else ""))
    if item.state == "PAUSED":
        next = views.next_command(gathered)
        mends = why.startswith("searcher custom: ")
        where = [f"the program runs in {gathered.paths.code}: mend it there"] if mends else []
        if "has shown a finite number" in why:
            where = ["if searcher.metric is misspelt: hpcdet cancel it, and submit it anew"]
        yield finding("pending", item.id, "it waits for a person", next, where)
    yield from _queue(gathered, item, words)
    yield from _avoided(gathered)
    yield from _copies(gathered, words)
    yield from _rungs(gathered)
    yield from _starting(gathered, trial, words)
    attempts = views.attempts(gathered, trial)
    of_trial: dict[int, list[AttemptView]] = defaultdict(list)
    for attempt in attempts:
        of_trial[attempt.trial].append(attempt)
    for row in item.trials:
        if trial in (0, row.trial):
            if trial and row.state != "ERROR":  # of which the cause is told
                yield finding("state", row.id, row.state + (f": {row.why}" if row.why else ""))
            yield from trial_findings.trial(gathered, row, of_trial[row.trial], words)
            if (found := gathered.trial(row.trial)) is not None:
                yield from trial_findings.said(found, row)
                for one in timing.findings(found):
                    yield finding("slow", row.id, f"slow: {one.finding}", one.next)
            if trial and (said := timeline.decided(gathered).get(trial)):
                yield finding("decision", row.id, f"the searcher decided: {said}")
    yield from _printed(gathered, attempts, queued=item.health == "queued")


def _printed(
    gathered: Gathered, attempts: Sequence[AttemptView], *, queued: bool
) -> Iterator[FindingView]:
    """Find what jobs printed whose attempts failed, or that ended before a worker took a trial.

    Only there a module that is missing is named, or another line of the site's ``setup`` that
    failed.
    """
    by_number = [(row.worker.partition("-")[0], row) for row in attempts]
    took = [(int(number), row) for number, row in by_number if number.isdecimal()]
    failed = {n: row.job for n, row in took if row.reason in ("user_error", "launch_failed")}
    told = (line for line in reversed(gathered.decisions) if line["kind"] == "state")
    halted = next(told, {}).get("by") == "scheduler"
    newest = max(gathered.paths.submissions(), default=0)
    # one that has printed, and of which no worker is known, does not wait in the queue any more
    begun = {worker.paths.submission for worker in gathered.workers} if queued else set()
    in_vain = (halted or queued) and newest not in begun.union(dict(took))
    number = newest if in_vain else max(failed, default=0)
    task = "" if in_vain else failed.get(number, "")
    if number and (said := logs.of_jobs(gathered.paths, number, task, lines=20)):
        yield finding("failure", gathered.id, f"the job of submission {number} printed", "", said)


def _avoided(gathered: Gathered) -> Iterator[FindingView]:
    """Find workers that left hosts which the scheduler could not leave out."""
    left = [
        f"worker {worker.paths.name} on {', '.join(worker.claim.nodes)}"
        for worker in gathered.workers
        if worker.end is not None and worker.end.why == "avoided" and worker.claim is not None
    ]
    if left:
        said = "the scheduler cannot leave hosts out: workers on those to be avoided took nothing, "
        said += "and left once their replacements ran elsewhere"
        yield finding("slow", gathered.id, said, "", left)


def _copies(gathered: Gathered, words: Commands) -> Iterator[FindingView]:
    """Find what is not in the object store yet, and why."""
    state = copy_records.state(gathered.paths)
    if state.why:
        said = f"not copied to the object store: {state.why}"
        evidence = [f"{', '.join(state.waiting[:20])} waits, as of {state.at} on {state.host}"]
        next = f"where the store can be reached: hpcdet ckpt archive {words.called(gathered.paths)}"
        yield finding("progress", gathered.id, said, next, evidence)


def _rungs(gathered: Gathered) -> Iterator[FindingView]:
    """Find rungs that trials reached faster than decisions were made."""
    left = beyond_rungs.beyond(gathered)
    passed = [one for one in left if one.passed]
    if not passed:
        return
    batches = sum(one.batches for one in left)
    took = statistics.median(one.seconds for one in passed)
    said = f"rungs came faster than decisions: {len(passed)} of {len(left)} times a trial reported"
    said += f" at further rungs before it left, typically {took:.2g} s after the report"
    trials = sorted({one.trial for one in passed})
    evidence = [f"{batches} batches in all were trained beyond rungs (hpcdet eff)"]
    evidence.append(f"trials {', '.join(map(str, trials[:20]))}{' …' if len(trials) > 20 else ''}")
    next = f"searcher.wait_at_rungs_s: {beyond_rungs.wait_s(took)}, or rungs farther apart"
    yield finding("slow", gathered.id, said, next, evidence)


def _starting(gathered: Gathered, trial: int, words: Commands) -> Iterator[FindingView]:
    """Find that most of the slot hours, or of those of a trial, went into starting."""
    now = costs.until(gathered)
    found = [one for one in slot_hours.pieces(gathered, now) if trial in (0, one.trial)]
    held = sum(one.slot_s for one in found if one.kind != "queued")
    starts = [one for one in found if one.kind == "starting"]
    share = sum(one.slot_s for one in starts) / held if held else 0.0
    if share <= 0.5 or not any(one.kind == "training" for one in found):
        return
    each = units.duration(statistics.median(one.end - one.start for one in starts))
    said = f"slow: starting: {units.percent(share)} of the slot hours"
    often = f"typically {each}" if len(starts) > 1 else each
    said += f" ({often} from claim to first step)"
    name = words.called(gathered.paths, trial)
    next = f"hpcdet eff {name} --waste; docs/guides/slow.md; or more training in each attempt"
    yield finding("slow", f"{gathered.id}/{trial}" if trial else gathered.id, said, next)


def _queue(gathered: Gathered, item: StatusView, words: Commands) -> Iterator[FindingView]:
    name, command = item.id, words.called(gathered.paths)
    for job in views.jobs(gathered):
        if job.error:
            hint = f"hpcdet show {command} --section jobs"
            refused = f"submission {job.number} was refused"
            evidence = [job.error] if job.error not in item.why else []
            yield finding("pending", name, refused, hint, evidence)
        elif job.hold and not job.job and not gathered.closed:
            hint = words.by_hand(job.script)
            prepared = "the experiment is prepared and waits to be submitted by hand"
            yield finding("pending", name, prepared, hint)
    if gathered.unwatched and states.unended(gathered):
        hint = f"hpcdet searcher {words.may_decide()} {command}"  # a process that goes on
        yield finding("pending", name, states.UNWATCHED, hint, [gathered.unwatched])
    if item.health == "queued":
        waiting = states.waiting_jobs(gathered)
        hint = words.look(waiting) or f"hpcdet resume {command}"
        shared = []
        if item.state == "STOPPING":
            hint = f"hpcdet searcher run {command}"
        elif states.held(gathered):
            hint = f"hpcdet release {command}"
        elif not waiting and any(wait.kind == "limit" for wait in item.waits):
            hint = f"hpcdet searcher {words.may_decide()} {command}"  # if nobody else does
        elif any(job.startswith("local-") for job in waiting):
            hint = f"hpcdet status -w {command}"
            shared = ["all experiments share this machine's slots: one per accelerator or core,"]
            shared += ["or as many as the site file's 'slots' says"]
        shared += [_WAITS[wait.kind] for wait in item.waits if wait.kind in _WAITS]
        yield finding("pending", name, item.health_why, hint, shared)
    if item.health == "stalled":
        said = logs.of_jobs(gathered.paths)
        why, next = item.health_why, f"hpcdet searcher {words.may_decide()} {command}"
        if (found := gathered.sentinel) is not None:
            why, next = found.why, found.next
        if home.original(gathered.paths) is not None:
            next = f"hpcdet move {gathered.paths.root} --here"
        yield finding("pending", name, why, next, said)
