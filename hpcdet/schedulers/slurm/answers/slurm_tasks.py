"""Tasks of jobs: rows of the queue and of accounting, merged."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from hpcdet.schedulers.common.base import Job, Occupancy, Task, TaskState, Wait
from hpcdet.schedulers.slurm.answers.slurm_text import SlurmRow

_SETTLED_S = 30
"""A job that was submitted less than this before an answer may be missing in it: clocks differ."""
_SAME_ID_S = 86400
"""Ids are used again after a wrap or a reinstallation; a job this much older is another one."""


@dataclass(frozen=True)
class JobAccounting:
    """The answer of accounting.

    Attributes:
        rows: by job; those it was not asked about yet are left out.
        at: when it was asked, epoch seconds.
    """

    rows: Mapping[str, Sequence[SlurmRow]]
    at: float


def by_job(rows: Sequence[SlurmRow]) -> dict[str, list[SlurmRow]]:
    """The rows of each job."""
    found: dict[str, list[SlurmRow]] = {}
    for row in rows:
        found.setdefault(row.task.job, []).append(row)
    return found


def occupancy(rows: Sequence[SlurmRow], at: float) -> Occupancy:
    """What runs and waits of a user's jobs, in an answer of then (epoch seconds)."""
    running: Counter[str] = Counter()
    for row in rows:
        if row.task.state in (TaskState.RUNNING, TaskState.ENDING):
            running[row.task.job] += row.task.count
    waiting = {row.task.job for row in rows if row.task.state is TaskState.PENDING}
    return Occupancy(at, running, frozenset(waiting))


def own(rows: Sequence[SlurmRow], job: Job) -> list[SlurmRow]:
    """The rows that are of this job and not of an older one with its id."""
    return [row for row in rows if is_of(job, row.submitted)]


def told(rows: Sequence[SlurmRow], before: Wait, now: Wait) -> list[SlurmRow]:
    """The rows, with another word for why those wait that had this one."""
    return [
        replace(row, task=replace(row.task, wait=now)) if row.task.wait == before else row
        for row in rows
    ]


def is_of(job: Job, submitted: float | None) -> bool:
    """Whether what was submitted then (epoch seconds) may be this job."""
    since = _submitted(job)
    return since is None or submitted is None or submitted > since - _SAME_ID_S


def missing(job: Job, rows: Sequence[SlurmRow]) -> frozenset[int]:
    """The indices of the job that no row speaks of."""
    there = frozenset[int]().union(*(row.indices for row in rows))
    return frozenset(range(job.tasks)) - there


def settled(job: Job, asked_at: float) -> bool:
    """Whether the job would be in an answer of then (epoch seconds), if it were there still."""
    since = _submitted(job)
    return since is None or since < asked_at - _SETTLED_S


def just_submitted(job: Job, lost: frozenset[int]) -> SlurmRow:
    """Tasks that are not in the queue yet."""
    task = Task(job.job, -1, TaskState.PENDING, "just submitted", count=len(lost))
    return SlurmRow(task, None, lost)


def ends(job: Job, left: Mapping[int, float], accounts: JobAccounting | None) -> list[SlurmRow]:
    """Return the ends of tasks that left the queue.

    Args:
        left: each with when the queue was asked that first lacked it. Accounting that was asked
            before that does not know the end: it is waited for.
        accounts: None without accounting.
    """
    said: list[SlurmRow] = []
    asked_at = math.inf
    if accounts is not None:
        asked_at = accounts.at if job.job in accounts.rows else -math.inf
        said = own(accounts.rows.get(job.job, []), job)
    told = {row.task.index: row for row in said if row.task.state.final}
    return [
        told.get(index)
        or (
            _row(job, index, TaskState.ENDING, "waits for accounting")
            if asked_at < since
            else _row(job, index, TaskState.GONE, "gone from the queue")
        )
        for index, since in sorted(left.items())
    ]


def _row(job: Job, index: int, state: TaskState, reason: str) -> SlurmRow:
    return SlurmRow(Task(job.job, index, state, reason), None, frozenset({index}))


def _submitted(job: Job) -> float | None:
    return datetime.fromisoformat(job.submitted_at).timestamp() if job.submitted_at else None
