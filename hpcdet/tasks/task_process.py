"""The process of a task in its job: starts the command or the server, watches it, and ends it.

It ends with the command, when nobody has used it for a while, when its user stops it, a little
before the walltime, and on SIGTERM. In any case it says how in ``ended.json``, and leaves neither
socket nor token behind.

``python -Pm hpcdet.tasks.task_process TASK`` is what the job runs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import IO

from hpcdet.errors import HpcdetError, IntegrityError
from hpcdet.jobs.script import command_job, launch
from hpcdet.schedulers import opening
from hpcdet.schedulers.common import processes
from hpcdet.site_files.load_site import from_resolved
from hpcdet.store.folder import log_streams, private_folders, trust
from hpcdet.store.fs import files
from hpcdet.tasks import tunnels
from hpcdet.tasks.folder.open_sessions import end_sessions, open_sessions
from hpcdet.tasks.folder.task_folder import (
    EndReason,
    TaskEnded,
    TaskOrder,
    TaskPaths,
    TaskServing,
    TaskStarted,
    TaskStop,
    refuse_foreign,
)
from hpcdet.tasks.servers import notebook_server, private_socket

_TICK_S = 0.2
_LOOK_S = 1.0
"""Seconds between two looks at files, which lie on a shared file system."""
_LEAD_S = 30.0
"""Seconds before the walltime at which a task is ended, or a tenth of it, if that is less."""


class TaskProcess:
    """One task, from the start of its job to the end.

    Args:
        task: its folder; ``task.json`` is there.
    """

    def __init__(self, task: TaskPaths) -> None:
        order = TaskOrder.read(task.order)
        if order is None:
            raise IntegrityError("this is no task", where=str(task.root))
        self.task, self.order = task, order
        self.site = from_resolved(task.job.site)
        inside = opening.of(self.site).inside
        self.allocation = inside.allocation(os.environ, order.walltime_s)
        self.used_at = time.monotonic()
        self.printed = 0
        self.told = False
        self.path: Path | None = None
        self.tunnel: tunnels.ReverseTunnel | None = None
        self.child: subprocess.Popen[bytes] | None = None

    def run(self) -> TaskEnded:
        """Run the task to its end, and return how it ended."""
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, self._hear)  # the script ignores them, and so would the child
        ended = TaskEnded("failed", at=files.now())
        with files.append_log(self.task.output) as log:
            try:
                self._begin(log)
                ended = self._until_the_end()
            except (HpcdetError, OSError) as error:
                log.write(f"{error}\n".encode())
                log.flush()
            finally:
                self._leave()
                ended.write_once(self.task.ended)
                end_sessions(self.task)  # one that opens later sees that it has ended
        return ended

    def _hear(self, number: int, _: FrameType | None) -> None:
        self.told = self.told or number == signal.SIGTERM

    def _begin(self, log: IO[bytes]) -> None:
        pid = os.getpid()
        start = processes.started(pid) or 0
        record = TaskStarted(
            self.allocation.nodes[0], pid, start, self.allocation.end_at, files.now()
        )
        record.write_once(self.task.started)
        if self.order.kind in tunnels.PORTS:
            self.path = private_folders.of_sockets() / "s"
            private_socket.write_token(self.task.token)
            if self.site.tunnel == "reverse":
                self.tunnel = tunnels.ReverseTunnel(self.order, self.path, log)
        argv, environ = self._command()
        if argv:
            self.child = subprocess.Popen(
                argv,
                cwd=self.order.folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )

    def _command(self) -> tuple[list[str], dict[str, str]]:
        environ = launch.with_variables(os.environ, command_job.environment(self.task.job))
        environ["HPCDET_ROOT"] = str(self.task.experiments)
        own = str(Path(sys.executable).parent)
        if own not in environ.get("PATH", "").split(os.pathsep):
            environ["PATH"] = os.pathsep.join(filter(None, (own, environ.get("PATH", ""))))
        match self.order.kind:
            case "notebook":
                assert self.path is not None
                argv = notebook_server.command(self.task, self.order, self.path)
                return argv, notebook_server.environment(environ, self.path)
            case "tensorboard":
                server = [sys.executable, "-Pm", "hpcdet.tasks.servers.tensorboard_server"]
                return [*server, str(self.task.root), str(self.path)], environ
            case _:
                return list(self.order.command), environ

    def _until_the_end(self) -> TaskEnded:
        look_at = 0.0
        while True:
            over = self._time_is_over()
            code = self.child.poll() if self.child is not None else None
            if code == -signal.SIGTERM:
                time.sleep(_TICK_S)  # who ends a job tells each of its processes, one by one
            if code is not None and not self.told:
                return self._ended_by_itself(code)
            if self.told:
                stopped = TaskStop.read(self.task.stop) is not None
                return self._end("stopped" if stopped else "walltime" if over else "canceled")
            now = time.monotonic()
            if now >= look_at:
                look_at = now + _LOOK_S
                if TaskStop.read(self.task.stop) is not None:
                    return self._end("stopped")
                if self._is_idle(now):
                    return self._end("idle")
                self._serve()
            if over:
                return self._end("walltime")
            time.sleep(_TICK_S)

    def _time_is_over(self) -> bool:
        lead = min(_LEAD_S, (self.order.walltime_s or 0) / 10)
        end_at = self.allocation.end_at
        return end_at is not None and time.time() >= end_at - lead

    def _is_idle(self, now: float) -> bool:
        """True if no shell is open, or a command has printed nothing, for too long."""
        if self.order.idle_s is None or self.order.kind in tunnels.PORTS:
            return False  # servers know best who uses them
        if self.order.kind == "shell":
            if open_sessions(self.task):
                self.used_at = now
        else:
            size = self.task.output.stat().st_size  # its time is another machine's
            if size != self.printed:
                self.used_at, self.printed = now, size
        return now - self.used_at >= self.order.idle_s

    def _serve(self) -> None:
        """Tell where the server listens once it answers."""
        if self.path is None:
            return
        if self.tunnel is not None:
            self.tunnel.see_to_it()
        if self.task.serving.exists():
            return
        token = private_socket.read_token(self.task.token)
        address = notebook_server.READY if self.order.kind == "notebook" else "/"
        if private_socket.status(self.path, address, token) == 200:
            notebook_server.forget_token(self.path)
            TaskServing(str(self.path), files.now()).write_once(self.task.serving)

    def _ended_by_itself(self, code: int) -> TaskEnded:
        if self.order.kind in tunnels.PORTS and code == 0:
            return TaskEnded("idle" if self.order.idle_s else "completed", 0, files.now())
        return TaskEnded("completed" if code == 0 else "failed", _shown(code), files.now())

    def _end(self, reason: EndReason) -> TaskEnded:
        """End the child, gently first, and say why."""
        if self.child is None:
            return TaskEnded(reason, None, files.now())
        group, limit = self.child.pid, time.monotonic() + self._patience()
        _signal_group(group, signal.SIGTERM)
        while self.child.poll() is None and time.monotonic() < limit:
            time.sleep(_TICK_S / 4)
        _signal_group(group, signal.SIGKILL)
        return TaskEnded(reason, _shown(self.child.wait()), files.now())

    def _patience(self) -> float:
        """Seconds for the child, so that some are left for the end of this process."""
        return max(1.0, 0.7 * self.site.limits.kill_wait_s)

    def _leave(self) -> None:
        if self.child is not None and self.child.poll() is None:
            _signal_group(self.child.pid, signal.SIGKILL)
        if self.tunnel is not None:
            self.tunnel.close()
        end_sessions(self.task)
        with contextlib.suppress(OSError):
            self.task.token.unlink(missing_ok=True)
        if self.path is not None:
            shutil.rmtree(self.path.parent, ignore_errors=True)
        shutil.rmtree(self.task.events, ignore_errors=True)


def _shown(code: int) -> int:
    """Return the exit code as a shell shows it."""
    return code if code >= 0 else 128 - code


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def main(argv: list[str]) -> int:
    """Run a task; the exit code is its command's."""
    os.umask(0o077)
    task = TaskPaths(Path(command_job.arguments(argv)[0]))
    refuse_foreign(task.experiments)
    trust.refuse_writable_by_others(task.root, "task")
    ended = TaskProcess(task).run()
    return ended.code or 0 if ended.reason in ("completed", "failed") else 0


if __name__ == "__main__":
    log_streams.lose_what_does_not_fit()
    sys.exit(main(sys.argv[1:]))
