"""``python -m hpcdet.schedulers.local_job JOB_FOLDER``: runs the tasks of one local job.

It is detached from who submitted it. A task is the job's script in a session of its own; what
ends it is what ends a task on a cluster: its own exit, the walltime (SIGUSR2 before, SIGTERM
at the limit, SIGKILL after), or a cancel (SIGTERM, SIGKILL after). A script that exits 85 is
started again with the next restart count, unless it was cancelled.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from hpcdet.schedulers import processes
from hpcdet.schedulers.local_state import (
    JobFolder,
    JobRecord,
    PlaceRecord,
    ProcessRecord,
    Request,
    TaskRecord,
    locked,
    slots_taken,
    somebody_before,
)
from hpcdet.store import files

REQUEUE = 85
_TICK_S = 0.1


@dataclass
class _Run:
    """A running task. Times are of the monotonic clock."""

    index: int
    process: subprocess.Popen[bytes]
    record: TaskRecord
    limit: float | None
    noticed: bool = False
    kill_at: float | None = None
    why: str = ""  # "canceled" or "timeout" once SIGTERM was sent


class Supervisor:
    """Runs one job to its end."""

    def __init__(self, job: JobFolder) -> None:
        record = JobRecord.read(job.record)
        if record is None:
            raise FileNotFoundError(job.record)
        self.job = job
        self.record = record
        self.request = Request.parse(Path(record.script).read_text())
        self.pending = list(range(record.tasks))
        self.restarts = dict.fromkeys(self.pending, 0)
        self.running: dict[int, _Run] = {}

    def run(self) -> None:
        """Until every task has ended, or the job's folder is gone, by which alone it is ruled."""
        while self.pending or self.running:
            if not self.job.record.exists():
                for run in self.running.values():
                    processes.kill_session(run.process.pid)
                return
            self._cancel_pending()
            for run in list(self.running.values()):
                self._watch(run)
            self._start_what_fits()
            time.sleep(_TICK_S)
        self.job.waiting.unlink(missing_ok=True)

    def _canceled(self, index: int) -> bool:
        return self.job.cancel(None).exists() or self.job.cancel(index).exists()

    def _cancel_pending(self) -> None:
        for index in [i for i in self.pending if self._canceled(i)]:
            self.pending.remove(index)
            self._write(index, TaskRecord("canceled", self.restarts[index], ended_at=files.now()))

    def _throttle(self) -> int:
        try:
            return int(self.job.throttle.read_text())
        except (OSError, ValueError):
            return self.record.throttle

    def _start_what_fits(self) -> None:
        while self.pending and len(self.running) < self._throttle():
            if self.job.hold.exists():
                break
            with locked(self.job.state):
                taken = slots_taken(self.job.state)
                free = [slot for slot in range(self.record.slots) if slot not in taken]
                # a task wider than the machine runs alone rather than never
                fits = not taken or self.request.slots <= len(free)
                if not fits or somebody_before(self.job):
                    self.job.waiting.write_bytes(_own_identity().encode())
                    return
                self._start(self.pending.pop(0), free[: self.request.slots])
        self.job.waiting.unlink(missing_ok=True)

    def _start(self, index: int, slots: list[int]) -> None:
        walltime = self.request.walltime_s
        environment = {
            **self.record.environment,
            "HPCDET_JOB": f"{self.job.id}_{index}",
            "HPCDET_TASK_INDEX": str(index),
            "HPCDET_RESTART_COUNT": str(self.restarts[index]),
        }
        if devices := self.record.devices:
            mine = dict.fromkeys(devices[slot % len(devices)] for slot in slots)
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(mine)
        if walltime:
            environment["HPCDET_DEADLINE"] = f"{time.time() + walltime:.3f}"
        output = os.devnull
        if self.request.output:
            folder = Path(self.request.output)
            files.make_folder(folder)
            output = str(folder / f"{index}.log")
        with open(output, "ab") as log:
            process = subprocess.Popen(
                ["/bin/bash", self.record.script],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        start = processes.started(process.pid) or 0
        files.replace(self.job.place(index), PlaceRecord(process.pid, start, slots).encode())
        record = TaskRecord(
            "running", self.restarts[index], process.pid, start, started_at=files.now()
        )
        self._write(index, record)
        limit = time.monotonic() + walltime if walltime else None
        self.running[index] = _Run(index, process, record, limit)

    def _watch(self, run: _Run) -> None:
        code = run.process.poll()
        if code is not None:
            self._finish(run, code)
            return
        now = time.monotonic()
        if run.kill_at is not None:
            if now >= run.kill_at:
                processes.kill_session(run.process.pid)
        elif self._canceled(run.index):
            self._terminate(run, "canceled")
        elif run.limit is not None and now >= run.limit:
            self._terminate(run, "timeout")
        elif run.limit is not None and not run.noticed and now >= run.limit - self._lead():
            run.noticed = True
            _signal(run, signal.SIGUSR2)

    def _lead(self) -> float:
        return min(self.request.signal_lead_s, self.request.walltime_s / 2)

    def _terminate(self, run: _Run, why: str) -> None:
        run.why = why
        run.kill_at = time.monotonic() + self.request.kill_wait_s
        _signal(run, signal.SIGTERM)

    def _finish(self, run: _Run, code: int) -> None:
        # whatever the script left behind (ranks of a killed worker) ends with it
        processes.kill_session(run.process.pid)
        self.job.place(run.index).unlink(missing_ok=True)
        del self.running[run.index]
        if code == REQUEUE and not self._canceled(run.index):
            self.restarts[run.index] += 1
            self.pending.insert(0, run.index)
            self._write(run.index, TaskRecord("pending", self.restarts[run.index]))
            return
        if run.why == "canceled" or (self._canceled(run.index) and code):
            state = "canceled"
        else:
            state = run.why or ("completed" if code == 0 else "failed")
        ended = replace(
            run.record, state=state, ended_at=files.now(), exit_code=code if code >= 0 else None
        )
        self._write(run.index, ended)

    def _write(self, index: int, record: TaskRecord) -> None:
        files.replace(self.job.task(index), record.encode())


def _signal(run: _Run, number: signal.Signals) -> None:
    """To the script and its worker; the ranks are told by the worker."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(run.process.pid, number)


def _unmoved(number: int, frame: FrameType | None) -> None:
    """A job is ended by ``cancel``, not by a signal to its supervisor."""


def _own_identity() -> ProcessRecord:
    pid = os.getpid()
    return ProcessRecord(pid, processes.started(pid) or 0)


def main(argv: list[str]) -> int:
    """Detach, say who runs the job, run it."""
    job = JobFolder(Path(argv[0]))
    if os.fork():
        os._exit(0)  # init reaps the supervisor, not the submitter
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _unmoved)  # not SIG_IGN, which the tasks would inherit
    if not _own_identity().write_once(job.supervisor):
        return 0
    Supervisor(job).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
