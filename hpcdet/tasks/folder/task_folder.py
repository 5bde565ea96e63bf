"""The folder of a task, ``ROOT/tasks/ID``: its files, their records, and how a task is named.

    task.json                 what was asked for; written once, by who starts it
    jobs/0001.submitted.json  the scheduler's id of its job; likewise
    started.json              the job runs: where, and until when; written once, by the job
    serving.json              the server answers: its socket and its token; likewise
    token                     what the server demands; by the job, removed at its end
    stop.json                 the user wants it to end
    ended.json                how it ended; written once, by the job
    output.log                what the command or the server printed
    sessions/                 shells that are open in it; a file each, by the shell
    events/                   event files of a TensorBoard, removed at its end

``site.yaml``, ``environment.yaml``, ``scripts`` and ``jobs`` are as in an experiment's folder.
All of it belongs to one user alone: folders are 0700, files 0600.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from hpcdet.errors import NotFound, Unavailable
from hpcdet.store.folder import private_folders, trust
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs.json_record import JsonRecord

TaskKind = Literal["notebook", "tensorboard", "shell", "run"]
TASKS = "tasks"
"""The folder of all tasks, below the folder that holds experiments."""
EndReason = Literal["completed", "failed", "idle", "stopped", "walltime", "canceled"]
_HINT = "hpcdet uses none that others may write; name another root: -C DIR or $HPCDET_ROOT"


@dataclass(frozen=True)
class TaskOrder(JsonRecord):
    """``task.json``: what a task is to do.

    Attributes:
        command: of a ``run``.
        folder: where the command or the server starts.
        sources: of a TensorBoard: absolute paths of experiments, trials and other folders.
        walltime_s: of its job; None: as long as the site lets it.
        idle_s: seconds without use after which it ends by itself; None: it does not.
        host: the login node where it was started.
        entrance: the folder on ``host`` in which a socket leads to the server, where the site's
            tunnels begin there; else "".
        path: the folders of commands there, the scheduler's among them.
    """

    kind: TaskKind
    command: list[str] = field(default_factory=list)
    folder: str = ""
    sources: list[str] = field(default_factory=list)
    walltime_s: float | None = None
    idle_s: float | None = None
    host: str = ""
    entrance: str = ""
    path: str = ""
    at: str = ""


@dataclass(frozen=True)
class TaskStarted(JsonRecord):
    """``started.json``. ``end_at``: when the walltime is over, epoch seconds; None: never.

    Attributes:
        host: the node's own name, by which other hosts reach it.
        pid: of the process that looks after the task.
        start: when that process started, as ``schedulers.local.processes`` tells it.
    """

    host: str
    pid: int
    start: int
    end_at: float | None = None
    at: str = ""


@dataclass(frozen=True)
class TaskServing(JsonRecord):
    """``serving.json``: the server's Unix socket on the node."""

    socket: str
    at: str = ""


@dataclass(frozen=True)
class TaskStop(JsonRecord):
    """``stop.json``."""

    at: str = ""


@dataclass(frozen=True)
class TaskEnded(JsonRecord):
    """``ended.json``.

    Attributes:
        reason: ``canceled`` means by somebody else than ``stop``.
        code: exit code of the command or the server, 128 and the signal's number if one ended it;
            None for a shell.
    """

    reason: EndReason
    code: int | None = None
    at: str = ""


@dataclass(frozen=True)
class TaskPaths:
    """All paths in a task's folder."""

    root: Path

    @property
    def id(self) -> str:
        return self.root.name

    @property
    def kind(self) -> str:
        """The kind, which the id begins with."""
        return self.id.partition("-")[0]

    @property
    def experiments(self) -> Path:
        """The folder that holds experiments, and ``tasks``."""
        return self.root.parent.parent

    @property
    def job(self) -> ExperimentPaths:
        """The files of its job, laid out as an experiment's."""
        return ExperimentPaths(self.root)

    @property
    def order(self) -> Path:
        return self.root / "task.json"

    @property
    def started(self) -> Path:
        return self.root / "started.json"

    @property
    def serving(self) -> Path:
        return self.root / "serving.json"

    @property
    def token(self) -> Path:
        return self.root / "token"

    @property
    def stop(self) -> Path:
        return self.root / "stop.json"

    @property
    def ended(self) -> Path:
        return self.root / "ended.json"

    @property
    def output(self) -> Path:
        return self.root / "output.log"

    @property
    def sessions(self) -> Path:
        return self.root / "sessions"

    @property
    def events(self) -> Path:
        return self.root / "events"


def tasks(root: Path, kind: str = "") -> list[TaskPaths]:
    """Return the user's tasks below a folder of experiments, oldest first.

    Args:
        kind: only these; "": all.

    Raises:
        PermissionError: the folder of experiments cannot be read.
        Unavailable: as ``refuse_foreign``.
    """
    folder = root / TASKS
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except PermissionError:  # another user's tasks, or a root that cannot be read
        os.scandir(root).close()
        return []
    refuse_foreign(root)
    found = []
    for paths in (TaskPaths(folder / name) for name in names):
        order = TaskOrder.read(paths.order) if kind in ("", paths.kind) else None
        if order is not None:
            found.append((order.at, paths.id, paths))
    return [paths for _, _, paths in sorted(found)]


def refuse_foreign(root: Path) -> None:
    """Refuse a root where tasks are, or could be replaced by, those of other users.

    What a task's files say is run, and lets in who knows its token.

    Raises:
        Unavailable: the folder of tasks belongs to another user or may be written by others, or
            others may rename what lies in a folder above it.
    """
    private_folders.refuse_foreign(root / TASKS, _HINT)
    for warning in trust.exchangeable(root):
        raise Unavailable(warning, where=str(root / TASKS), hint=_HINT)


def task(text: str, root: Path, kind: str = "") -> TaskPaths:
    """Return the task of an id or of an unambiguous prefix of one.

    Raises:
        NotFound: nothing fits, or more than one task.
        Unavailable: as ``tasks``, or the task's own folder may be written by others.
    """
    there = tasks(root, kind)
    fits = [paths for paths in there if paths.id == text] or [
        paths for paths in there if paths.id.startswith(text)
    ]
    word = kind or "task"
    if len(fits) > 1:
        names = ", ".join(paths.id for paths in fits[:5])
        raise NotFound(f"{len(fits)} fit: {names}", where=text, hint="type more of the id")
    if not fits:
        hint = f"hpcdet {kind or 'run'} ls shows those in {root / TASKS} (-C DIR or $HPCDET_ROOT)"
        raise NotFound(f"no such {word}", where=text, hint=hint)
    private_folders.refuse_foreign(fits[0].root, _HINT)
    return fits[0]
