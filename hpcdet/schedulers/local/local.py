"""The backend for a machine without a scheduler: jobs are processes that outlive who made them.

It behaves as a small cluster would: arrays with a throttle, a limited number of slots over all
local jobs of the user, walltime, warning signals, requeue in place, hold, cancel. State is in
``local_state``, the running of a job in ``local_job``. A job's id names its machine
(``local-65f2a-812@node7``), since no other one can tell how it stands.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hpcdet.errors import Unavailable
from hpcdet.schedulers.common import processes
from hpcdet.schedulers.common.base import (
    Capabilities,
    Job,
    Refusal,
    Submission,
    SubmissionRefused,
    Task,
    TaskState,
    Wait,
)
from hpcdet.schedulers.common.machine import accelerators, usable_cores
from hpcdet.schedulers.local.local_state import (
    PARTS,
    JobFolder,
    JobRecord,
    JobRequest,
    TaskRecord,
    refuse_foreign,
    state_folder,
    this_host,
)
from hpcdet.store.fs import files

_KEPT = {
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TERM"),
    *("XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"),
    *("PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CUDA_VISIBLE_DEVICES"),
    *("HPCDET_ROOT", "HPCDET_SITE", "HPCDET_SITE_DIR", "HPCDET_CACHE", "HPCDET_LOCAL_STATE"),
    *("HPCDET_BACKEND", "HPCDET_MPI_CUDA"),
}
_KEPT_PREFIXES = ("LC_",)
_START_LIMIT_S = 60
_KEEP_ENDED_S = 7 * 24 * 3600


def shared_devices() -> list[str]:
    """The devices that local jobs are dealt: those of this process.

    Inside a local task, which sees its own only, they are all those of the task's job: what
    it submits waits for any of them, and not for the one that it trains on itself.
    """
    given = os.environ.get("HPCDET_LOCAL_DEVICES")
    return accelerators() if given is None else [name for name in given.split(",") if name]


def shared_slots() -> int:
    """Ranks that run at once where the site does not say: one per device, else per core."""
    given = os.environ.get("HPCDET_LOCAL_SLOTS", "")
    return int(given) if given.isdecimal() else len(shared_devices()) or usable_cores()


def job_environment() -> dict[str, str]:
    """Return the environment of a job: an allow-list, so that no token is passed by accident."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or name.startswith(_KEPT_PREFIXES)
    }


class LocalScheduler:
    """Jobs of this user on this machine.

    Args:
        slots: ranks that may run at once over all jobs that see the same devices; None:
            ``shared_slots()``. A task that wants more runs alone.
        state: the state folder; None: ``state_folder()``.
    """

    name = "local"

    def __init__(self, slots: int | None = None, state: Path | None = None) -> None:
        self._devices = shared_devices()
        self._slots = slots or shared_slots()
        self._root = state or state_folder()
        self.host = this_host()
        self.answered_at = 0.0

    @functools.cached_property
    def _state(self) -> Path:
        """Raise Unavailable if another user could have written there."""
        refuse_foreign(self._root)
        return self._root

    def submit(self, submission: Submission) -> str:
        """Start a supervisor for the job; returns once it runs. Raises SubmissionRefused."""
        try:
            JobRequest.parse(submission.script.read_text())
        except (OSError, ValueError) as error:
            raise SubmissionRefused(Refusal("invalid", f"{submission.script}: {error}")) from error
        self._prepare()
        # ids sort by age and are never used twice
        job = self._job(f"local-{time.time_ns() // 1000:x}-{os.getpid()}@{self.host}")
        record = JobRecord(
            name=submission.name,
            tag=submission.tag,
            script=str(submission.script.absolute()),
            tasks=submission.tasks,
            throttle=submission.throttle or submission.tasks,
            slots=self._slots,
            devices=self._devices,
            environment={**job_environment(), **submission.environment},
            submitted_at=files.now(),
        )
        files.make_folder(job.root / "tasks")
        if submission.held:
            files.write_once(job.hold, b"")
        record.write_once(job.record)
        self._supervise(job)
        return job.id

    def find(self, name: str, tag: str) -> str | None:
        """Id of the job of that name and tag, if it was submitted here."""
        for job in self._jobs():
            record = JobRecord.read(job.record)
            if record is not None and (record.name, record.tag) == (name, tag):
                return job.id
        return None

    def query(self, jobs: Sequence[Job]) -> dict[str, list[Task]]:
        """All tasks of these jobs. A task whose processes vanished unseen is ``GONE``."""
        self.answered_at = time.time()
        return {job.job: self._tasks(job) for job in jobs}

    def elsewhere(self, job: str) -> str:
        """See ``base.PerHost``. Ids of former versions name no machine: they are of this one."""
        host = job.partition("@")[2]
        return host if host != self.host else ""

    def cancel(self, job: str, index: int | None = None) -> None:
        """Ask the supervisor to end a job or a task; without one, end what is left of it.

        Raises:
            Unavailable: it is a job of another machine.
        """
        folder = self._here(job)
        if not folder.record.exists():
            return
        files.write_once(folder.cancel(index), b"")
        if not folder.supervised():
            record = JobRecord.read(folder.record)
            for i in range(record.tasks if record else 0):
                task = TaskRecord.read(folder.task(i))
                if index in (None, i) and task is not None and _runs(task):
                    processes.kill_session(task.pid)

    def throttle(self, job: str, running: int) -> None:
        """Change how many tasks may run at once. Raises Unavailable as ``cancel``."""
        folder = self._here(job)
        if folder.record.exists():
            files.replace(folder.throttle, str(running).encode())

    def hold(self, job: str, on: bool) -> None:
        """See ``base.Scheduler``. Raises Unavailable as ``cancel``."""
        folder = self._here(job)
        if not on:
            folder.hold.unlink(missing_ok=True)
        elif folder.record.exists():
            files.write_once(folder.hold, b"")

    def join(
        self, job: str, host: str, command: Sequence[str], *, terminal: bool = False
    ) -> list[str]:
        """See ``base.Joins``: jobs run beside all other processes. Raises as ``cancel``."""
        self._here(job)
        return list(command)

    def check(self, submission: Submission) -> str:
        """Return the request as this machine can serve it."""
        request = JobRequest.parse(submission.script.read_text())
        if request.slots > self._slots:
            return f"wants {request.slots} slots of {self._slots}: runs alone, and slowly"
        return ""

    def capabilities(self) -> Capabilities:
        """Requeue in place, no accounting."""
        return Capabilities(requeue=True, accounting=False, max_array_tasks=1_000_000)

    def _job(self, job: str) -> JobFolder:
        return JobFolder(self._state / "jobs" / job)

    def _here(self, job: str) -> JobFolder:
        if host := self.elsewhere(job):
            hint = f"give the same command on {host}"
            raise Unavailable(f"{job} is a job of another machine", where=host, hint=hint)
        return self._job(job)

    def _jobs(self) -> list[JobFolder]:
        folder = self._state / "jobs"
        return [JobFolder(root) for root in sorted(folder.iterdir())] if folder.is_dir() else []

    def _prepare(self) -> None:
        for name in PARTS:
            files.make_folder(self._state / name)
        refuse_foreign(self._root)
        for job in self._jobs():
            with contextlib.suppress(FileNotFoundError):  # another submission tidies up, too
                old = time.time() - job.root.stat().st_mtime > _KEEP_ENDED_S
                if old and not job.supervised():
                    shutil.rmtree(job.root, ignore_errors=True)

    def _supervise(self, job: JobFolder) -> None:
        with files.append_log(job.root / "supervisor.log") as log:
            starter = subprocess.Popen(
                [sys.executable, "-Pm", "hpcdet.schedulers.local.local_job", str(job.root)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
            )
        starter.wait()
        limit = time.monotonic() + _START_LIMIT_S
        while not job.supervisor.exists():
            if time.monotonic() > limit:
                raise Unavailable(
                    "the supervisor of the job did not start",
                    where=str(job.root / "supervisor.log"),
                )
            time.sleep(0.01)

    def _tasks(self, job: Job) -> list[Task]:
        folder = self._job(job.job)
        # asked first: a supervisor that ends between the two questions has written its states
        supervised = folder.supervised()
        return [self._task(folder, index, supervised) for index in range(job.tasks)]

    def _task(self, folder: JobFolder, index: int, supervised: bool) -> Task:
        task = TaskRecord.read(folder.task(index)) or TaskRecord("pending")
        state = TaskState(task.state)
        if not state.final and not supervised:
            state = TaskState.RUNNING if _runs(task) else TaskState.GONE
        return Task(
            job=folder.id,
            index=index,
            state=state,
            reason=_why_pending(folder) if state is TaskState.PENDING else "",
            wait=Wait("held") if folder.hold.exists() else Wait(),
            restarts=task.restarts,
            nodes=(socket.gethostname(),) if task.started_at else (),
            start=task.started_at,
            end=task.ended_at,
            exit_code=task.exit_code,
        )


def _runs(task: TaskRecord) -> bool:
    return task.state == "running" and processes.session_alive(task.pid, task.start)


def _why_pending(job: JobFolder) -> str:
    return "JobHeldUser" if job.hold.exists() else "Resources"
