"""States of experiments and trials, and the health of their control, from files alone."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from hpcdet.read.experiment import digests
from hpcdet.read.experiment.gather import Gathered, GatheredTrial, GatheredWorker
from hpcdet.store.decisions import chain, lease
from hpcdet.store.folder import home, layout
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import ExperimentState, TrialState
from hpcdet.store.fs import beat_age, packed

ENDED: frozenset[str] = frozenset({"COMPLETED", "STOPPED", "CANCELED", "ERROR"})

FRESH_S = 120.0
"""Who gave no sign of life for so long is not counted as alive (beats come every 15 s)."""
UNWATCHED = "no job watches the end of the workers: the small one behind them was refused"


def trial_state(trial: GatheredTrial, over: str = "") -> TrialState:
    """Return the state of one trial; ``over`` as in ``at_end``."""
    return at_end(digests.state(trial), over)


def at_end(state: TrialState, over: str) -> TrialState:
    """Return the state of a trial that has this one in an experiment that goes on.

    Args:
        over: state of the closed experiment, in which no unfinished trial will ever end; or "".
    """
    if over in ENDED and state in ("PENDING", "PAUSED"):
        return "ERROR" if over == "ERROR" else "CANCELED"
    return state


def stuck(gathered: Gathered) -> bool:
    """True if the experiment is paused because of a failure, not by its user."""
    said = _said(gathered)
    return bool(said.get("by")) and experiment_state(gathered)[0] == "PAUSED"


def resuming(gathered: Gathered) -> str:
    """Return the command that resumes the experiment, with the change that its holder suggested."""
    change = _said(gathered).get("change")
    return f"hpcdet resume {home.called(gathered.paths)}" + (f" --set {change}" if change else "")


def _said(gathered: Gathered) -> dict[str, Any]:
    return next((line for line in reversed(gathered.decisions) if line["kind"] == "state"), {})


def experiment_state(gathered: Gathered) -> tuple[ExperimentState, str]:
    """Return the state of an experiment and its reason, "" if none is recorded."""
    if gathered.closed is not None:
        return gathered.closed.state, gathered.closed.why
    said = _said(gathered)
    state, why = said.get("state", "PENDING"), str(said.get("why", ""))
    if state in ENDED and not gathered.reopened:
        return "STOPPING", why  # decided; waiting jobs and the hook come before it is closed
    if state in ENDED:
        state, why = "RUNNING", ""
    match _unheard(gathered):
        case "cancel":
            return "STOPPING", "canceled by its user"
        case "pause":
            state, why = "PAUSED", "paused by its user"
        case "resume" | "retry":
            state, why = "RUNNING", ""
    if state == "PAUSED" and any(trial.standing.open_attempt for trial in gathered.trials):
        # who is paused by trouble still lets run what runs
        return ("RUNNING" if said.get("by") else "STOPPING"), why
    if state == "PENDING" and any(trial.attempts for trial in gathered.trials):
        return "RUNNING", why
    return state, why


def _unheard(gathered: Gathered) -> str:
    """Return the latest command to the whole experiment that no holder has obeyed yet; or ""."""
    heard = max((d["seq"] for d in gathered.decisions if d["kind"] == "command"), default=0)
    words = [c.verb for seq, c in gathered.commands if seq > heard and not c.trial]
    if "cancel" in words:
        return "cancel"
    return next((word for word in reversed(words) if word in ("pause", "resume", "retry")), "")


def health(gathered: Gathered, now: float | None = None) -> dict[str, Any]:
    """Return how well the experiment is looked after: ``health``, ``last_turn_s`` and ``why``.

    ``ok``: workers live, or nothing is left to do. ``queued``: jobs wait in the queue, new or
    requeued, by the files (the last holder records the scheduler's answers), or may not be
    submitted yet for a limit of the site.
    ``blind``: the holder cannot reach the scheduler at present.
    ``stalled``: no process is left that could go on. ``last_turn_s`` is the age in seconds of the
    last sign of a holder of the lease, None if there never was one.
    """
    found = _health(gathered, now)
    if found["health"] in ("ok", "queued") and gathered.unwatched and unended(gathered):
        said = f"{UNWATCHED}: {gathered.unwatched}"
        found["why"] = "; ".join(filter(None, (found["why"], said)))
    return found


def unended(gathered: Gathered) -> bool:
    """True unless the experiment is over or paused."""
    return experiment_state(gathered)[0] not in {*ENDED, "PAUSED"}


def _health(gathered: Gathered, now: float | None) -> dict[str, Any]:
    now = time.time() if now is None else now
    last = _last_turn(gathered, now)
    age = None if last is None else round(last, 1)
    state, _ = experiment_state(gathered)
    if state not in ENDED and (there := home.original(gathered.paths)) is not None:
        why = f"this is a copy of {there}, to which its jobs belong"
        return {"health": "stalled", "last_turn_s": age, "why": why}
    if state in ENDED or state == "PAUSED":
        return {"health": "ok", "last_turn_s": age, "why": ""}
    works = any(w.end is None and _is_fresh(w.paths.beat, now) for w in gathered.workers)
    if (found := gathered.sentinel) is not None and not works:
        why = f"{found.why}; next: {found.next}"
        return {"health": "stalled", "last_turn_s": age, "why": why}
    if age is not None and age <= FRESH_S and (blind := _blind(gathered)):
        return {"health": "blind", "last_turn_s": age, "why": blind}
    if unreadable := chain.gap(gathered.paths):
        return {"health": "stalled", "last_turn_s": age, "why": unreadable}
    if works:
        return {"health": "ok", "last_turn_s": age, "why": ""}
    submitted = [j.submitted.job for j in gathered.jobs if j.submitted and j.submitted.job]
    begun = {w.paths.submission for w in gathered.workers}
    fresh = {j.submitted.job for j in gathered.jobs if j.submitted and j.number not in begun}
    if fresh.intersection(waiting_jobs(gathered)):
        why = "jobs wait in the queue" + _reasons(gathered)
        return {"health": "queued", "last_turn_s": age, "why": why}
    if waiting := _waiting(gathered):
        why = f"{waiting} task{'s' if waiting > 1 else ''} should wait in the queue"
        why += _reasons(gathered)
        return {"health": "queued", "last_turn_s": age, "why": why}
    if other := _waits_for(gathered):
        why = f"begins when {other} has ended well"
        return {"health": "queued", "last_turn_s": age, "why": why}
    full = next((one for one in waits(gathered.paths) if one["kind"] == "limit"), None)
    more = f"{full['tasks']} more may not be submitted yet ({full['reason']})" if full else ""
    if age is not None and age <= FRESH_S:
        return {"health": "queued" if full else "ok", "last_turn_s": age, "why": more}
    why = "nobody works or decides" + (", unless tasks wait in the queue" if submitted else "")
    why += f"; {more}" if more else ""
    return {"health": "stalled", "last_turn_s": age, "why": why}


def _newest(gathered: Gathered) -> dict[tuple[int, int], GatheredWorker]:
    """Return the newest worker of each task, by submission and index."""
    newest: dict[tuple[int, int], GatheredWorker] = {}
    for worker in gathered.workers:
        key = (worker.paths.submission, worker.paths.index)
        if key not in newest or worker.paths.incarnation > newest[key].paths.incarnation:
            newest[key] = worker
    return newest


def _waiting(gathered: Gathered) -> int:
    """Return the tasks that wait in the queue, by the files.

    The last holder told how many it saw there; who started since waits no more. A worker whose
    task was to be requeued said so in its end, which may be later.
    """
    returning = sum(w.end is not None and w.end.returns for w in _newest(gathered).values())
    told = lease.last(gathered.paths)
    beat = told[1] if told is not None else None
    if beat is None:
        return returning
    started = sum(w.claim is not None and w.claim.at > beat.at for w in gathered.workers)
    return max(returning, beat.waiting - started)


def waiting_jobs(gathered: Gathered) -> list[str]:
    """Return the ids of the jobs whose tasks may wait in the queue, by the files.

    A task waits no more if its launch failed, or its worker has ended and does not come back. One
    whose worker was lost may have been requeued, until another job was sent in its place.
    """
    jobs = {j.number: j.submitted.job for j in gathered.jobs if j.submitted and j.submitted.job}
    unlaunched = [line["run"] for line in gathered.decisions if line["kind"] == "unlaunched"]
    over = {tuple(map(str, run[:2])) for run in unlaunched}
    for (number, index), worker in _newest(gathered).items():
        end = worker.end
        if (
            end is not None
            and not end.returns
            and (end.why != "lost" or number < max(jobs, default=0))
        ):
            over.add((jobs.get(number, ""), str(index)))
    tasks = {job.number: job.intent.tasks for job in gathered.jobs}
    return [
        job
        for number, job in jobs.items()
        if any((job, str(index)) not in over for index in range(tasks[number]))
    ]


def waits(paths: ExperimentPaths) -> list[dict[str, Any]]:
    """Return why tasks wait, by the last holder (``store.decisions.lease.Lease.waits``)."""
    told = lease.last(paths)
    return told[1].reasons() if told is not None and told[1] is not None else []


def reasons(paths: ExperimentPaths) -> str:
    """Return why tasks wait, by the last holder, in the scheduler's words; "" if none do."""
    parts = (f"{one['reason'] or 'no reason given'} since {one['since']}" for one in waits(paths))
    return "; ".join(parts)


def _reasons(gathered: Gathered) -> str:
    told = reasons(gathered.paths)
    return f" ({told})" if told else ""


def held(gathered: Gathered) -> bool:
    """True if the user holds the experiment's jobs in the queue."""
    words = [c.verb for _, c in gathered.commands if c.verb in ("hold", "release")]
    return words[-1:] == ["hold"]


def _waits_for(gathered: Gathered) -> str:
    """Return the unfinished experiment that must end before this one begins; "" if there is none.

    The process that closes that one turns the crank of this one.
    """
    root = gathered.paths.root
    for _, command in gathered.commands:
        if command.verb == "resume" and not command.trial:
            return ""
        for folder in command.arguments.get("experiments", []) if command.verb == "after" else []:
            other = layout.ExperimentPaths(Path(os.path.normpath(root / folder)))
            if other.config.exists() and not other.closed.exists():
                return other.id
    return ""


def leaving(gathered: Gathered) -> bool:
    """True if a worker with a recent beat has not written its end yet."""
    return any(map(lives, gathered.workers))


def lives(worker: GatheredWorker) -> bool:
    """True if a worker has a recent beat and has not written its end, by the files."""
    return worker.end is None and _is_fresh(worker.paths.beat, time.time())


def _last_turn(gathered: Gathered, now: float) -> float | None:
    """Return the age in seconds of the newest term's last sign; None if there never was a term."""
    terms = packed.numbers(gathered.paths.terms, ".json")
    if not terms:
        return None
    newest = gathered.paths.term(terms[-1])
    ages = (beat_age.age_s(path, now) for path in (newest, newest.with_suffix(".beat")))
    return min((age for age in ages if age is not None), default=None)


def _blind(gathered: Gathered) -> str:
    newest = lease.last(gathered.paths)
    return newest[1].blind if newest is not None and newest[1] is not None else ""


def _is_fresh(path: Path, now: float) -> bool:
    age = beat_age.age_s(path, now)
    return age is not None and age <= FRESH_S
