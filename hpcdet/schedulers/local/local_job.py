"""``python -m hpcdet.schedulers.local.local_job JOB_FOLDER``: runs the tasks of one local job.

It is detached from who submitted it. A task is the job's script in a session of its own; what
ends it is what ends a task on a cluster: its own exit, the walltime (SIGUSR2 before, SIGTERM
at the limit, SIGKILL after), or a cancel (SIGTERM, SIGKILL after). A script that exits 85 is
started again with the next restart count, unless it was cancelled.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from hpcdet.schedulers.common import processes
from hpcdet.schedulers.common.base import REQUEUE
from hpcdet.schedulers.local.local_state import (
    JobFolder,
    JobRecord,
    JobRequest,
    PlaceRecord,
    ProcessRecord,
    TaskRecord,
    locked,
    refuse_foreign,
    slots_taken,
    somebody_before,
)
from hpcdet.store.folder import log_streams
from hpcdet.store.fs import files

PASSING = frozenset(
    {
        errno.EAGAIN,
        errno.EDQUOT,
        errno.EIO,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ENOSPC,
        errno.ESTALE,
        errno.ETIMEDOUT,
    }
)
"""What may be over at the next tick; a task that is refused for anything else has failed."""
_TICK_S = 0.1
_SELDOM_S = 1.0
_SELDOMER = 1.3
"""A job that waits looks for places at each tick first, and each second in the end."""


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
        self.request = JobRequest.parse(Path(record.script).read_text())
        self.pending = list(range(record.tasks))
        self.restarts = dict.fromkeys(self.pending, 0)
        self.running: dict[int, _Run] = {}
        self.unwritten: dict[int, TaskRecord] = {}
        self.look_at = 0.0
        self.look_s = _TICK_S
        self.said = ""

    def run(self) -> None:
        """Until every task has ended, or the job's folder is gone, by which alone it is ruled.

        What the file system refuses, a full one for instance, is tried again at the next tick.
        """
        while self.pending or self.running or self.unwritten:
            try:
                if not self.job.record.exists():
                    for run in self.running.values():
                        processes.kill_session(run.process.pid)
                    return
                self._tick()
            except OSError as error:
                self._say(str(error))
                with contextlib.suppress(OSError):  # newer jobs do not wait for what it meets
                    self.job.waiting.unlink(missing_ok=True)
            time.sleep(_TICK_S)
        with contextlib.suppress(OSError):
            self.job.waiting.unlink(missing_ok=True)

    def _say(self, what: str) -> None:
        """For ``supervisor.log``, once: it may be refused, too."""
        if what != self.said:
            self.said = what
            with contextlib.suppress(OSError):
                print(files.now(), what, file=sys.stderr, flush=True)

    def _tick(self) -> None:
        self._cancel_pending()
        for run in list(self.running.values()):
            self._watch(run)
        self._write_down()
        self._start_what_fits()

    def _write_down(self) -> None:
        for index, record in list(self.unwritten.items()):
            files.replace(self.job.task(index), record.encode())
            del self.unwritten[index]

    def _canceled(self, index: int) -> bool:
        return self.job.cancel(None).exists() or self.job.cancel(index).exists()

    def _cancel_pending(self) -> None:
        for index in [i for i in self.pending if self._canceled(i)]:
            self.pending.remove(index)
            canceled = TaskRecord("canceled", self.restarts[index], ended_at=files.now())
            self.unwritten[index] = canceled

    def _throttle(self) -> int:
        try:
            return int(self.job.throttle.read_text())
        except (OSError, ValueError):
            return self.record.throttle

    def _start_what_fits(self) -> None:
        while self.pending and len(self.running) < self._throttle():
            if self.job.hold.exists():
                break
            now = time.monotonic()
            if now < self.look_at:
                return
            self.look_at, self.look_s = now + self.look_s, min(_SELDOM_S, self.look_s * _SELDOMER)
            with locked(self.job.state):
                taken = slots_taken(self.job.state)
                slots = range(self.record.slots)
                free = [slot for slot in slots if self.record.name_of(slot) not in taken]
                # a task wider than the machine runs alone rather than never
                fits = not taken or self.request.slots <= len(free)
                if not fits or somebody_before(self.job):
                    self._wait()
                    return
                try:
                    self._start(self.pending[0], free[: self.request.slots])
                except OSError as error:
                    if error.errno in PASSING:
                        raise
                    self._give_up(self.pending[0], error)
            self._look_soon()
            self._write_down()
        self.job.waiting.unlink(missing_ok=True)

    def _wait(self) -> None:
        """Say that the job wants places, unless that is written already."""
        said = _own_identity().encode()
        with contextlib.suppress(FileNotFoundError):
            if self.job.waiting.read_bytes() == said:
                return
        self.job.waiting.write_bytes(said)

    def _look_soon(self) -> None:
        self.look_at, self.look_s = 0.0, _TICK_S

    def _start(self, index: int, slots: list[int]) -> None:
        walltime = self.request.walltime_s
        environment = {
            **self.record.environment,
            "HPCDET_JOB": f"{self.job.id}_{index}",
            "HPCDET_TASK_INDEX": str(index),
            "HPCDET_RESTART_COUNT": str(self.restarts[index]),
            "HPCDET_LOCAL_DEVICES": ",".join(self.record.devices),
            "HPCDET_LOCAL_SLOTS": str(self.record.slots),
        }
        if devices := self.record.devices:
            mine = dict.fromkeys(devices[slot % len(devices)] for slot in slots)
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(mine)
        if walltime:
            environment["HPCDET_DEADLINE"] = f"{time.time() + walltime:.3f}"
        output = Path(os.devnull)
        if self.request.output:
            folder = Path(self.request.output)
            files.make_folder(folder)
            output = folder / f"{index}.log"
        with files.append_log(output) as log:
            process = subprocess.Popen(
                ["/bin/bash", self.record.script],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        start = processes.started(process.pid) or 0
        names = [self.record.name_of(slot) for slot in slots]
        place = PlaceRecord(process.pid, start, slots, names)
        try:
            files.replace(self.job.place(index), place.encode())
        except OSError:  # others would take its places
            processes.kill_session(process.pid)
            process.wait()
            raise
        self.pending.remove(index)
        record = TaskRecord(
            "running", self.restarts[index], process.pid, start, started_at=files.now()
        )
        limit = time.monotonic() + walltime if walltime else None
        self.running[index] = _Run(index, process, record, limit)
        self.unwritten[index] = record

    def _give_up(self, index: int, error: OSError) -> None:
        self._say(f"task {index} cannot be started: {error}")
        self.pending.remove(index)
        self.unwritten[index] = TaskRecord("failed", self.restarts[index], ended_at=files.now())

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
        canceled = self._canceled(run.index)
        # whatever the script left behind (ranks of a killed worker) ends with it
        processes.kill_session(run.process.pid)
        del self.running[run.index]
        self._look_soon()
        with contextlib.suppress(OSError):  # who counts places clears those of the dead
            self.job.place(run.index).unlink(missing_ok=True)
        if code == REQUEUE and not canceled:
            self.restarts[run.index] += 1
            self.pending.insert(0, run.index)
            self.unwritten[run.index] = TaskRecord("pending", self.restarts[run.index])
            return
        if run.why == "canceled" or (canceled and code):
            state = "canceled"
        else:
            state = run.why or ("completed" if code == 0 else "failed")
        self.unwritten[run.index] = replace(
            run.record, state=state, ended_at=files.now(), exit_code=code if code >= 0 else None
        )


def _signal(run: _Run, number: signal.Signals) -> None:
    """Signal the script and its worker; the worker passes it on to the ranks."""
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
    refuse_foreign(job.state)
    os.umask(0o077)
    if os.fork():
        os._exit(0)  # init reaps the supervisor, not the submitter
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _unmoved)  # not SIG_IGN, which the tasks would inherit
    if not _own_identity().write_once(job.supervisor):
        return 0
    Supervisor(job).run()
    return 0


if __name__ == "__main__":
    log_streams.lose_what_does_not_fit()
    sys.exit(main(sys.argv[1:]))
