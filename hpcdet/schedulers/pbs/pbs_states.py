"""States and ends: what a row of ``qstat`` means for a task."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from hpcdet.schedulers.common.base import Job, Task, TaskState, Usage, Wait
from hpcdet.schedulers.pbs_family import pbs_ids, pbs_text, pbs_waits
from hpcdet.schedulers.pbs_family.pbs_text import PbsRow

_LIVE = {
    "Q": TaskState.PENDING,
    "H": TaskState.PENDING,
    "W": TaskState.PENDING,
    "T": TaskState.PENDING,
    "M": TaskState.PENDING,  # on another server now, which nobody was told to ask
    "B": TaskState.RUNNING,
    "R": TaskState.RUNNING,
    "S": TaskState.RUNNING,  # suspended: it is not lost
    "U": TaskState.RUNNING,
    "E": TaskState.ENDING,
}
_ENDED = frozenset("FX")
_DELETED, _FINISHED = 91, 92
_DEPENDENCY_HOLD, _STAGE_IN_FAILED = 22, 37
_SIGNALED = 256
"""Above it the status is a signal's number; the rest are exit codes."""
_TERM = 15

_OF_STATUS = {
    -26: TaskState.OOM,  # vmem
    -27: TaskState.OOM,  # mem
    -28: TaskState.TIMEOUT,  # cput
    -29: TaskState.TIMEOUT,
    -11: TaskState.PREEMPTED,  # rerun, and over before it ran again
    -12: TaskState.PREEMPTED,
    -14: TaskState.PREEMPTED,
    -15: TaskState.PREEMPTED,
    -16: TaskState.PREEMPTED,
    -18: TaskState.PREEMPTED,
    -24: TaskState.FAILED,  # more cores than asked for
    -25: TaskState.FAILED,
}
"""Negative statuses. The others are failed starts, and the loss of the first host (-20)."""


def occupied(text: str) -> tuple[dict[str, int], frozenset[str]]:
    """Return how many tasks of each job run, and the jobs that wait.

    Args:
        text: ids of tasks, an empty line, and ids of jobs.
    """
    running, _, waiting = text.partition("\n\n")
    tasks = {id for line in running.splitlines() if (id := pbs_ids.parse(line))}
    counts = Counter(pbs_ids.job_and_index(id)[0] for id in tasks if not pbs_ids.is_array(id))
    jobs = (pbs_ids.parse(line) for line in waiting.splitlines())
    return counts, frozenset(job for job in jobs if job)


def tasks(job: Job, rows: Mapping[str, PbsRow], user: str, *, asked: bool) -> list[Task]:
    """All tasks of a job.

    Args:
        rows: the server's answer, by id.
        user: who we are; what others delete is preempted.
        asked: the answer is about this job. One that it lacks is gone then.
    """
    if not asked:
        return [Task(job.job, index, TaskState.PENDING, "just submitted") for index in _all(job)]
    parent = pbs_text.of_job(rows.get(job.job), job.submitted_at)
    return [_task(job, index, parent, rows, user) for index in _all(job)]


def _all(job: Job) -> range:
    return range(job.tasks if pbs_ids.is_array(job.job) else 1)


def _task(
    job: Job, index: int, parent: PbsRow | None, rows: Mapping[str, PbsRow], user: str
) -> Task:
    row = pbs_text.of_job(rows.get(pbs_ids.task_id(job.job, index)), job.submitted_at)
    if row is not None:
        found = task(row, user, rows)
        if found.state is TaskState.PENDING and parent is not None and parent.state == "H":
            reason, wait = pbs_waits.held(parent.holds, parent.depends)  # its tasks are shown as Q
            found = replace(found, reason=reason, wait=wait)
        return found
    if parent is None or parent.state in _ENDED:
        return Task(job.job, index, TaskState.GONE, "gone from PBS's history")
    return Task(job.job, index, TaskState.PENDING, "just submitted")


def task(row: PbsRow, user: str, rows: Mapping[str, PbsRow] | None = None) -> Task:
    """The task that a row shows."""
    job, index = pbs_ids.job_and_index(row.id)
    state = end(row, user) if row.state in _ENDED else _LIVE.get(row.state, TaskState.RUNNING)
    found = Task(
        job=job,
        index=index,
        state=state,
        reason=row.comment if state.final else "",
        restarts=max(0, row.run_count - (state is not TaskState.PENDING)),
        nodes=row.hosts,
        start=pbs_text.iso(row.start),
        end=pbs_text.iso(row.end) if state.final else "",
        exit_code=exit_code(row) if state.final else None,
    )
    if in_vain(row, rows or {}):
        waits = f"{row.depends or 'its dependency'} can never hold"
        return replace(found, state=TaskState.PENDING, reason=waits, wait=Wait("in_vain"))
    if state is not TaskState.PENDING:
        return replace(found, reason="suspended") if row.state in "SU" else found
    reason, wait = _waits(row)
    return replace(found, reason=reason, wait=wait)


def _waits(row: PbsRow) -> tuple[str, Wait]:
    if row.state == "H":
        return pbs_waits.held(row.holds, row.depends)
    if row.state == "W":
        if row.substate == _STAGE_IN_FAILED:
            return "staging in failed", Wait("other")
        return "waits for its time", Wait("begin_time")
    if row.state == "M":
        return "moved to another server", Wait()
    # a job that was run again keeps the comment of its last run until the next cycle
    said = pbs_waits.words(row.comment)
    return said or ("requeued" if row.run_count else "queued"), pbs_waits.wait(row.comment)


def in_vain(row: PbsRow, rows: Mapping[str, PbsRow]) -> bool:
    """True for a job that waited for an end that did not come, or will not come.

    PBS calls a job whose dependency cannot hold any more finished (92), as if it had ended well,
    but without an exit status; it lets one wait for ever (22) whose former job was deleted before
    it ran.
    """
    if row.state in _ENDED:
        return row.substate == _FINISHED and row.exit_status is None and row.start is None
    if row.state != "H" or row.substate != _DEPENDENCY_HOLD:
        return False
    return any(never_ran(rows[job]) for job in dependencies(row) if job in rows)


def dependencies(row: PbsRow) -> list[str]:
    """The ids of the jobs that a job waits for."""
    return re.findall(r":([^:,@\s]+)@?", row.depends)


def never_ran(row: PbsRow) -> bool:
    """True for a job that was deleted before it ran."""
    return row.state in _ENDED and row.substate == _DELETED and row.exit_status is None


def end(row: PbsRow, user: str) -> TaskState:
    """How a row in state F or X ended.

    An array's own status says nothing, and neither does that of a subjob that has not run: it is
    its array's.
    """
    status = row.exit_status if row.ran else None
    if row.substate == _DELETED or (status is None and not row.ran):
        return _deleted(row, user)
    if status is None:
        # finished without an end: the host that should have told it is not there
        return TaskState.NODE_FAIL
    if status == 0:
        return TaskState.COMPLETED
    if status == _SIGNALED + _TERM:
        return _deleted(row, user)
    return TaskState.FAILED if status > 0 else _OF_STATUS.get(status, TaskState.NODE_FAIL)


def _deleted(row: PbsRow, user: str) -> TaskState:
    """Canceled if we, or nobody that is named, have deleted it; else preempted."""
    found = re.search(r"terminated by ([^@\s]+)", row.comment)
    by = found[1] if found is not None else ""
    if by == user or (not by and row.substate == _DELETED) or not row.ran:
        return TaskState.CANCELED
    return TaskState.PREEMPTED


def exit_code(row: PbsRow) -> int | None:
    """The exit code, a signal's number with a minus; None if the job has none of its own."""
    status = row.exit_status if row.ran else None
    if status is None or status < 0:
        return None
    return _SIGNALED - status if status > _SIGNALED else status


def usage(job: Job, rows: Mapping[str, PbsRow]) -> list[Usage]:
    """The last run of each task of a job that has begun; PBS keeps no earlier ones."""
    found = []
    for index in _all(job):
        row = pbs_text.of_job(rows.get(pbs_ids.task_id(job.job, index)), job.submitted_at)
        if row is None or row.start is None or not row.ran or not row.run_count:
            continue
        over = row.state in _ENDED
        ended = row.end if over else None
        if over and ended is None:
            continue  # nobody knows when
        elapsed = row.used_s if row.used_s is not None else (ended or row.start) - row.start
        found.append(Usage(job.job, index, row.start, ended, elapsed, row.gpus))
    return found
