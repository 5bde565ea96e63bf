"""The shells that are open in a task: a file each, in which the process of the shell is named."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
from dataclasses import dataclass

from hpcdet.schedulers.common import processes
from hpcdet.store.fs import files
from hpcdet.store.fs.json_record import JsonRecord
from hpcdet.tasks.folder.task_folder import TaskPaths


@dataclass(frozen=True)
class OpenSession(JsonRecord):
    """``sessions/NONCE.json``: a shell on the task's node, for as long as its process lives."""

    pid: int
    start: int
    at: str = ""


def open_session(task: TaskPaths) -> None:
    """Record this process, which becomes a shell."""
    pid = os.getpid()
    record = OpenSession(pid, processes.started(pid) or 0, files.now())
    record.write_once(task.sessions / f"{secrets.token_hex(8)}.json")


def open_sessions(task: TaskPaths) -> list[int]:
    """Return the processes of the shells that are open; for the task's own node."""
    if not task.sessions.is_dir():
        return []
    records = (OpenSession.read(path) for path in task.sessions.glob("*.json"))
    return [one.pid for one in records if one is not None and processes.alive(one.pid, one.start)]


def end_sessions(task: TaskPaths) -> None:
    """Tell the open shells that their terminal is gone, as at the end of a connection."""
    for pid in open_sessions(task):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGHUP)
