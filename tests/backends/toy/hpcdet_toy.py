"""A scheduler for one machine in one file: a folder for each job, and a shell that runs it.

    $TOY_SPOOL/3/job.json    name, tag and script
    $TOY_SPOOL/3/held        it waits until that is gone
    $TOY_SPOOL/3/shell       number and start time of the shell
    $TOY_SPOOL/3/code        its exit code, once it has ended
    $TOY_SPOOL/3/canceled    it was ended by its user

It knows no arrays, requeues nothing and has no accounting.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from hpcdet.schedulers.common import processes
from hpcdet.schedulers.common.backend import Backend
from hpcdet.schedulers.common.base import (
    Capabilities,
    Job,
    Scheduler,
    Submission,
    Task,
    TaskState,
    Wait,
)
from hpcdet.schedulers.common.plain_faces import PlainFacts, PlainInside, PlainNames, PlainScript
from hpcdet.site import Site

_KILL_S = 20.0
_SHELL = """
while [ -e "$0/held" ]; do sleep 0.1; done
export HPCDET_JOB="$(basename "$0")_0" HPCDET_TASK_INDEX=0
bash "$0/script" >"$0/out" 2>&1
echo $? >"$0/code.new" && mv "$0/code.new" "$0/code"
"""


class ToyScheduler:
    """``base.Scheduler`` over a folder."""

    name = "toy"

    def __init__(self) -> None:
        self.spool = Path(os.environ["TOY_SPOOL"])
        self.answered_at = 0.0

    def submit(self, submission: Submission) -> str:
        """A job folder of the next number, and its shell."""
        self.spool.mkdir(exist_ok=True, mode=0o700)
        number = 1
        while True:
            job = self.spool / f"toy{number}"
            try:
                job.mkdir(mode=0o700)
                break
            except FileExistsError:
                number += 1
        (job / "script").write_text(submission.script.read_text())
        if submission.held:
            (job / "held").touch()
        said = {"name": submission.name, "tag": submission.tag}
        (job / "job.json").write_text(json.dumps(said))
        shell = subprocess.Popen(
            ["bash", "-c", _SHELL, str(job)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        start = processes.started(shell.pid) or 0
        (job / "shell").write_text(f"{shell.pid} {start}")
        return job.name

    def find(self, name: str, tag: str) -> str | None:
        """The job that says so of itself."""
        for file in self.spool.glob("*/job.json"):
            if json.loads(file.read_text()) == {"name": name, "tag": tag}:
                return file.parent.name
        return None

    def query(self, jobs: Sequence[Job]) -> dict[str, list[Task]]:
        """What each folder and each shell says."""
        self.answered_at = time.time()
        return {job.job: [self._task(job.job)] for job in jobs}

    def _task(self, name: str) -> Task:
        job = self.spool / name
        if (job / "code").exists():
            code = int((job / "code").read_text())
            state = TaskState.COMPLETED if code == 0 else TaskState.FAILED
            return Task(name, 0, state, exit_code=code, nodes=(os.uname().nodename,))
        if (job / "canceled").exists():
            return Task(name, 0, TaskState.CANCELED)
        if not processes.session_alive(*self._shell(job)):
            return Task(name, 0, TaskState.GONE)
        if (job / "held").exists():
            return Task(name, 0, TaskState.PENDING, "Held", wait=Wait("held"))
        return Task(name, 0, TaskState.RUNNING, nodes=(os.uname().nodename,))

    def _shell(self, job: Path) -> tuple[int, int]:
        pid, start = (job / "shell").read_text().split()
        return int(pid), int(start)

    def cancel(self, job: str, index: int | None = None) -> None:
        """Tell everything that the shell has started to end, and end what is left."""
        folder = self.spool / job
        if folder.exists() and not (folder / "code").exists():
            (folder / "canceled").touch()
            shell, start = self._shell(folder)
            for pid in list(processes.members(shell)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            limit = time.monotonic() + _KILL_S
            while processes.session_alive(shell, start) and time.monotonic() < limit:
                time.sleep(0.05)
            processes.kill_session(shell)

    def throttle(self, job: str, running: int) -> None:
        """A job is one task."""

    def hold(self, job: str, on: bool) -> None:
        """A file that the shell waits for."""
        held = self.spool / job / "held"
        if on:
            held.touch()
        else:
            held.unlink(missing_ok=True)

    def check(self, submission: Submission) -> str:
        """It takes whatever it gets."""
        return ""

    def capabilities(self) -> Capabilities:
        """Single jobs."""
        return Capabilities(arrays=False)


class ToyFacts(PlainFacts):
    """``backend.FactsFace``."""

    generic = "toy"


class ToyBackend:
    """``backend.Backend``."""

    name = "toy"
    cluster = True
    script = PlainScript()
    inside = PlainInside()
    names = PlainNames(r"(?:toy:)?(toy\d+)(?:_0)?")
    facts = ToyFacts()

    def control(self, site: Site) -> Scheduler:
        """See ``backend.Backend``."""
        return ToyScheduler()


BACKEND: Backend = ToyBackend()
