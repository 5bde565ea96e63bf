"""Small real experiments for tests: model code, submission, waiting, and the story of a failure."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from hpcdet.schedulers import processes
from hpcdet.schedulers.local_state import JobFolder, JobRecord, ProcessRecord, TaskRecord

PATIENCE_S = 180


def until(
    condition: Callable[[], object],
    story: Callable[[], str] = lambda: "",
    timeout: float = PATIENCE_S,
    every: float = 0.05,
) -> None:
    """Wait for a condition; fail with the story if it does not come."""
    limit = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < limit, f"waited {timeout} s in vain\n{story()}"
        time.sleep(every)


def end_local_jobs(state: Path) -> None:
    """Kill every supervisor and every task of a local backend's state folder."""
    jobs = [JobFolder(root) for root in (state / "jobs").glob("*")]
    for job in jobs:
        supervisor = ProcessRecord.read(job.supervisor)
        if supervisor is not None and job.supervised():
            processes.kill_session(supervisor.pid)
    for job in jobs:
        record = JobRecord.read(job.record)
        for index in range(record.tasks if record else 0):
            task = TaskRecord.read(job.task(index))
            if task is not None and task.pid and processes.session_alive(task.pid, task.start):
                processes.kill_session(task.pid)
