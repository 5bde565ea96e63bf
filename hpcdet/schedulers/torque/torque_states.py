"""States and ends: what a job that ``qstat`` shows means for a task."""

from __future__ import annotations

from collections.abc import Iterable

from hpcdet.schedulers.common.base import Task, TaskState, Wait
from hpcdet.schedulers.pbs_family import pbs_text, pbs_waits
from hpcdet.schedulers.pbs_family.pbs_text import PbsRow

ENDED = frozenset("CU")
"""``U`` is what a wrapper prints for an end that it has no letter for."""
_LIVE = {
    "Q": TaskState.PENDING,
    "H": TaskState.PENDING,
    "W": TaskState.PENDING,
    "T": TaskState.PENDING,
    "R": TaskState.RUNNING,
    "S": TaskState.RUNNING,
    "E": TaskState.ENDING,
}
_SIGNALED = 256
"""Above it the status is a signal's number; the rest are exit codes."""
_KILLING = frozenset({_SIGNALED + 9, _SIGNALED + 15})
_OF_STATUS = {-10: TaskState.OOM, -11: TaskState.TIMEOUT, -12: TaskState.TIMEOUT}
"""Limits of memory, walltime and processor time. Others below 0 are failed starts."""


def task(row: PbsRow) -> Task:
    """The task that a row shows."""
    state = end(row) if row.state in ENDED else _LIVE.get(row.state, TaskState.RUNNING)
    reason, wait = _waits(row) if state is TaskState.PENDING else ("", Wait())
    return Task(
        job=row.id,
        index=0,
        state=state,
        reason=reason or ("suspended" if row.state == "S" else ""),
        wait=wait,
        nodes=row.hosts,
        start=pbs_text.iso(row.start),
        end=pbs_text.iso(row.end) if state.final else "",
        exit_code=exit_code(row) if state.final else None,
    )


def occupied(rows: Iterable[PbsRow]) -> tuple[dict[str, int], frozenset[str]]:
    """Return the jobs that run, one task each, and those that wait."""
    states = {row.id: _LIVE.get(row.state) for row in rows}
    waiting = frozenset(job for job, state in states.items() if state is TaskState.PENDING)
    running = {job: 1 for job, state in states.items() if state and job not in waiting}
    return running, waiting


def _waits(row: PbsRow) -> tuple[str, Wait]:
    if row.state == "H":
        return pbs_waits.held(row.holds, row.depends)
    if row.state == "W":
        return "waits for its time", Wait("begin_time")
    return pbs_waits.words(row.comment) or "queued", pbs_waits.wait(row.comment)


def end(row: PbsRow) -> TaskState:
    """Return the end of a completed job; ``GONE`` where it is unknown.

    Torque does not say who deleted a job, and calls one that is over its walltime killed.
    """
    status = row.exit_status
    if status is None:
        return TaskState.GONE
    if status in _KILLING:
        over = (
            row.used_s is not None and row.walltime_s is not None and row.used_s >= row.walltime_s
        )
        return TaskState.TIMEOUT if over else TaskState.CANCELED
    if status > 0:
        return TaskState.FAILED
    return TaskState.COMPLETED if status == 0 else _OF_STATUS.get(status, TaskState.NODE_FAIL)


def exit_code(row: PbsRow) -> int | None:
    """The exit code, a signal's number with a minus; None if the job has none of its own."""
    status = row.exit_status
    if status is None or status < 0:
        return None
    return _SIGNALED - status if status > _SIGNALED else status
