"""Tasks as the verbs print them: their state by their own files, else by the scheduler."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hpcdet.errors import HpcdetError
from hpcdet.schedulers.calls import lost_submissions
from hpcdet.schedulers.common.base import Job, Task, TaskState
from hpcdet.schedulers.opening import open_scheduler
from hpcdet.site import Site
from hpcdet.site_files.load_site import from_resolved
from hpcdet.store.folder.records import Intent, Submitted
from hpcdet.store.fs import files
from hpcdet.tasks import tunnels
from hpcdet.tasks.folder.task_folder import (
    TaskEnded,
    TaskKind,
    TaskOrder,
    TaskPaths,
    TaskServing,
    TaskStarted,
    TaskStop,
)

TaskStateName = Literal["PENDING", "RUNNING", "STOPPING", "COMPLETED", "CANCELED", "ERROR"]
_ENDS: dict[str, TaskStateName] = {
    "completed": "COMPLETED",
    "idle": "COMPLETED",
    "walltime": "COMPLETED",
    "stopped": "CANCELED",
    "canceled": "CANCELED",
    "failed": "ERROR",
}
_GONE: dict[TaskState, tuple[TaskStateName, str]] = {
    TaskState.COMPLETED: ("ERROR", "lost"),  # the job ended well, and the task did not say how
    TaskState.CANCELED: ("CANCELED", "canceled"),
    TaskState.PREEMPTED: ("CANCELED", "preempted"),
    TaskState.TIMEOUT: ("COMPLETED", "walltime"),
}
"""What the end of a job means for a task that did not tell its own."""


@dataclass(frozen=True)
class InteractiveTaskView:
    """A notebook, a TensorBoard, a shell or a command."""

    id: str
    """Its id."""
    kind: TaskKind
    """What it is."""
    state: TaskStateName
    """Its state."""
    reason: str
    """Why it waits, in the scheduler's word; `starting` until a server answers; or how it ended."""
    job: str
    """The scheduler's id of its job; "" before it is submitted."""
    node: str
    """The node that it runs on, or ran on; "" before."""
    socket: str
    """The Unix socket of its server, on the node; "" where none listens."""
    token_file: str
    """The file with the token that the server demands; "" where none listens."""
    left_s: float | None
    """Seconds that are left of its walltime; null if it does not run, or has no end."""
    tunnel: str
    """The line of ssh for your own machine; "" where no server listens."""
    exit_code: int | None
    """Exit code of the command or the server; null before the end, and of shells."""
    command: list[str]
    """The words of the command; none but of `run`."""
    created_at: str
    """When it was started."""


def views(tasks: Sequence[TaskPaths]) -> tuple[list[InteractiveTaskView], list[str]]:
    """Return the views of tasks, and warnings of schedulers that do not answer."""
    asked, warnings = _asked([task for task in tasks if not task.ended.exists()])
    return [_view(task, asked.get(task.root)) for task in tasks], warnings


def view(task: TaskPaths) -> InteractiveTaskView:
    """Return the view of one task. The scheduler's answer may be missing."""
    return views([task])[0][0]


def _asked(tasks: Sequence[TaskPaths]) -> tuple[dict[Path, Task], list[str]]:
    """Ask the schedulers about tasks; one question for all of a site."""
    known: dict[bytes, tuple[Site, dict[str, tuple[TaskPaths, Job]]]] = {}
    for task in tasks:
        submitted = _submitted(task)
        if submitted is not None and submitted.job:
            text = files.read(task.job.site)
            _, jobs = known.setdefault(text, (from_resolved(task.job.site), {}))
            jobs[submitted.job] = (task, Job(submitted.job, 1, submitted.at))
    found: dict[Path, Task] = {}
    warnings = []
    for site, jobs in known.values():
        try:
            answers = open_scheduler(site).query([job for _, job in jobs.values()])
        except HpcdetError as error:
            warnings.append(f"site {site.name}: {error.what}")
            continue
        for id, (task, _) in jobs.items():
            rows = answers.get(id, [])
            if rows:
                found[task.root] = rows[0]
    return found, warnings


def _submitted(task: TaskPaths) -> Submitted | None:
    """Return the record of a task's job; that of an interrupted submission is found by its tag."""
    record = Submitted.read(task.job.submitted(1))
    intent = Intent.read(task.job.intent(1))
    if record is not None or intent is None:
        return record
    with contextlib.suppress(HpcdetError):
        site = from_resolved(task.job.site)
        script = task.job.script(intent.number)
        job = lost_submissions.find(open_scheduler(site), intent.name, intent.tag, script)
        if job is not None:
            record = Submitted(job, site.scheduler, at=files.now())
            record.write_once(task.job.submitted(1))
    return record


def _view(task: TaskPaths, asked: Task | None) -> InteractiveTaskView:
    order = TaskOrder.read(task.order)
    assert order is not None
    submitted = Submitted.read(task.job.submitted(1))
    started, ended = TaskStarted.read(task.started), TaskEnded.read(task.ended)
    serving = TaskServing.read(task.serving)
    state, reason = _standing(task, started, ended, asked)
    listens = serving is not None and state == "RUNNING"
    if state == "RUNNING" and order.kind in tunnels.PORTS and not listens:
        reason = "starting"
    line = ""
    if listens and started is not None and serving is not None:
        tunnel = from_resolved(task.job.site).tunnel
        line = tunnels.ssh_line(task, order, started, serving, tunnel)
    left = None
    if started is not None and started.end_at is not None and state in ("RUNNING", "STOPPING"):
        left = round(max(0.0, started.end_at - time.time()), 1)
    return InteractiveTaskView(
        id=task.id,
        kind=order.kind,
        state=state,
        reason=reason,
        job=submitted.job if submitted is not None else "",
        node=started.host if started is not None else "",
        socket=serving.socket if listens and serving is not None else "",
        token_file=str(task.token) if listens else "",
        left_s=left,
        tunnel=line,
        exit_code=ended.code if ended is not None else None,
        command=order.command,
        created_at=order.at,
    )


def _standing(
    task: TaskPaths, started: TaskStarted | None, ended: TaskEnded | None, asked: Task | None
) -> tuple[TaskStateName, str]:
    if ended is not None:
        return _ENDS.get(ended.reason, "ERROR"), ended.reason
    stops = TaskStop.read(task.stop) is not None
    if asked is not None and asked.state.final:
        if stops:
            return "CANCELED", "stopped"
        return _GONE.get(asked.state, ("ERROR", asked.state.value))
    if stops:
        return "STOPPING", ""
    if started is not None or (asked is not None and asked.state is not TaskState.PENDING):
        return "RUNNING", ""
    return "PENDING", asked.reason if asked is not None else ""


def request_stop(task: TaskPaths) -> None:
    """Ask a task to end, and its scheduler to end the job.

    Raises:
        Unavailable: the scheduler does not answer; a task that runs ends all the same.
    """
    TaskStop(files.now()).write_once(task.stop)
    submitted = _submitted(task)
    if submitted is not None and submitted.job:
        open_scheduler(from_resolved(task.job.site)).cancel(submitted.job)
    if (order := TaskOrder.read(task.order)) is not None:
        tunnels.close_entrance(order)
