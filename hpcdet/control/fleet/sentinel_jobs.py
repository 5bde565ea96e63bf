"""The sentinel: a small job behind each array, where it helps (``jobs.script.succession``).

It runs when all tasks of the array have ended (only if one failed, where it may submit others),
and continues the experiment, or tells the user that no job can (``worker.sentinel``). It is
submitted as workers are: an intent, a tag, and then the id.
"""

from __future__ import annotations

import contextlib
import dataclasses

from hpcdet.control.fleet import intents
from hpcdet.control.leader.leader import Holder
from hpcdet.control.leader.lost_workers import FleetView
from hpcdet.errors import HpcdetError, Unavailable
from hpcdet.jobs.script import succession
from hpcdet.schedulers.calls import lost_submissions
from hpcdet.schedulers.common.base import Job, SubmissionRefused, Task, TaskState
from hpcdet.store.folder.records import Intent, Submitted
from hpcdet.store.fs import files

_LIVES = (TaskState.PENDING, TaskState.RUNNING)


def post(holder: Holder, seen: FleetView) -> None:
    """Submit a sentinel behind each array of which tasks may live.

    Raises:
        Fenced: the term ended meanwhile.
    """
    if not succession.after_end(holder.hands.site):
        return
    if not holder.submits or holder.hold or intents.rests(holder, "sentinel"):
        return
    with intents.patience(holder, "sentinel"):
        for number, jobs in _due(holder, seen).items():
            _post(holder, number, jobs)


def places(holder: Holder, seen: FleetView) -> int:
    """Return how many places of the queue are for sentinels, with that of the next submission."""
    if not succession.after_end(holder.hands.site):
        return 0
    live = _live(holder, seen)
    if holder.hands.scheduler.capabilities().arrays:
        return len(live) + 1
    return 1 + sum(Intent.read(holder.paths.sentinel(number)) is not None for number in live)


def _live(holder: Holder, seen: FleetView) -> dict[int, str]:
    """Return the jobs of which tasks may live, by their submission."""
    known = holder.watch.files.submissions()
    return {i.number: one.job for i, one in known if one.job and i.number not in seen.over}


def _due(holder: Holder, seen: FleetView) -> dict[int, str]:
    """Return the submissions to post a sentinel for, and the jobs that each is to wait for."""
    jobs = _live(holder, seen)
    if holder.hands.scheduler.capabilities().arrays:
        return jobs
    if not holder.hands.site.capabilities.nobody_submits:
        return dict([*jobs.items()][:1])  # as long as one lives, it sees to the others
    # one behind the ends of all chains of spare jobs
    spares = (i for i, _ in holder.watch.files.submissions() if i.is_spare and i.number in jobs)
    inner = {job for spare in spares for job in spare.behind}
    ends = {number: job for number, job in jobs.items() if job not in inner}
    if all(("watched", job) in holder.written for job in ends.values()):
        return {}
    for number in holder.paths.submissions():
        small = Intent.read(holder.paths.sentinel(number))
        if small is not None and Submitted.read(holder.paths.sentinel_submitted(number)) is None:
            return {number: small.watches}
        for job in small.watches.split(":") if small is not None else ():
            holder.written["watched", job] = True
    new = [number for number, job in ends.items() if ("watched", job) not in holder.written]
    return {max(new): ":".join(ends.values())} if new else {}


def dismiss(holder: Holder) -> None:
    """Cancel the sentinels of a closed experiment; one that runs already ends by itself."""
    if holder.kind == "sentinel":
        return
    posted: list[Job] = []
    for number in holder.paths.submissions():
        if number > holder.watch.left_behind:
            submitted = Submitted.read(holder.paths.sentinel_submitted(number))
            if submitted is not None and submitted.job:
                posted.append(Job(submitted.job, 1, submitted.at))
    scheduler = holder.hands.scheduler
    rows: dict[str, list[Task]] = {}
    with contextlib.suppress(Unavailable):
        rows = scheduler.query(posted) if posted else {}
    for job in (one.job for one in posted):
        if not rows.get(job) or any(row.state in _LIVES for row in rows[job]):
            with contextlib.suppress(Unavailable):
                scheduler.cancel(job)


def _post(holder: Holder, number: int, job: str) -> None:
    done = holder.paths.sentinel_submitted(number)
    if ("sentinel", number) in holder.written:
        return
    if Submitted.read(done) is None:
        scheduler, path = holder.hands.scheduler, holder.paths.sentinel(number)
        intent, found = Intent.read(path), None
        if intent is None:
            intent = intents.form(holder, number, holder.paths.sentinel_script(number), "-sentinel")
            intent = dataclasses.replace(intent, watches=job)
            holder.fence()
            if not intent.write_once(path):
                return  # of a former holder; the next turn finds out what became of it
        else:
            script = holder.paths.sentinel_script(number)
            found = lost_submissions.find(scheduler, intent.name, intent.tag, script)
        record = Submitted(found, scheduler.name, at=files.now()) if found else None
        record = record or _submit(holder, intent)
        intents.keep(holder, record, done)
        holder.actions.append(f"sentinel of job {job}: job {record.job or record.error}")
    holder.written["sentinel", number] = True


def _submit(holder: Holder, intent: Intent) -> Submitted:
    """Submit a sentinel and return the result; the search goes on even if it is refused."""
    scheduler = holder.hands.scheduler
    try:
        return Submitted(intents.send(holder, intent), scheduler.name, at=files.now())
    except SubmissionRefused as refused:
        if refused.refusal.kind != "invalid":
            raise intents.later_for(refused.refusal) from None
        why = refused.refusal.message
    except Unavailable:
        raise
    except HpcdetError as error:
        why = str(error)
    return Submitted("", scheduler.name, why, files.now())
