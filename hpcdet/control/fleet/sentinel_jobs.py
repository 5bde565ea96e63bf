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
    if not holder.submits or holder.hold or holder.hands.clock() < holder.pace.throttled_until:
        return
    try:
        known = [(i, one.job) for i, one in holder.watch.files.submissions() if one.job]
        jobs = {intent.number: job for intent, job in known if intent.number not in seen.over}
        if not holder.hands.scheduler.capabilities().arrays and jobs:
            if holder.hands.site.capabilities.nobody_submits:  # behind all chains of spare jobs
                queued = [one for one, _ in known if one.is_spare and one.number in jobs]
                inner = {job for one in queued for job in one.behind}
                ends = [job for job in jobs.values() if job not in inner]
                jobs = {max(jobs): ":".join(ends)}
            else:
                jobs = dict([*jobs.items()][:1])  # as long as one lives, it sees to the others
        for number, job in jobs.items():
            _post(holder, number, job)
    except Unavailable as error:
        intents.later(holder, error.what)


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
        record.write_once(done)
        holder.actions.append(f"sentinel of job {job}: job {record.job or record.error}")
    holder.written["sentinel", number] = True


def _submit(holder: Holder, intent: Intent) -> Submitted:
    """Submit a sentinel and return the result; the search goes on even if it is refused."""
    scheduler = holder.hands.scheduler
    try:
        return Submitted(intents.send(holder, intent), scheduler.name, at=files.now())
    except SubmissionRefused as refused:
        if refused.refusal.kind != "invalid":
            raise Unavailable(refused.refusal.message) from None
        why = refused.refusal.message
    except Unavailable:
        raise
    except HpcdetError as error:
        why = str(error)
    return Submitted("", scheduler.name, why, files.now())
