"""State of the local backend's jobs on this machine: one folder per job, plain JSON.

    STATE/lock                     held (flock) while places are counted
    STATE/jobs/ID/job.json         what was submitted; write-once
    STATE/jobs/ID/supervisor.json  the process that runs it
    STATE/jobs/ID/tasks/3.json     state of a task, replaced by the supervisor
    STATE/jobs/ID/cancel[.3]       asked to end
    STATE/jobs/ID/hold             what waits is to go on waiting
    STATE/jobs/ID/throttle         tasks that may run at once
    STATE/running/ID.3             the places a task holds, by the names of their devices
    STATE/waiting/ID               the job wants places: later jobs stand behind it

The folder is one of this machine alone (its name is in the path, where homes are shared), so that
a file lock may be trusted.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hpcdet.schedulers.common import processes
from hpcdet.store.folder import private_folders
from hpcdet.store.fs import files
from hpcdet.store.fs.json_record import JsonRecord

PARTS = ("jobs", "running", "waiting")
"""Folders in the state folder."""
_REQUEST = re.compile(r"^#HPCDET (\w+)=(.*)$", re.MULTILINE)


def this_host() -> str:
    """The name of this machine, in letters that a job's id may have."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())


def state_folder() -> Path:
    """``$HPCDET_LOCAL_STATE``, else below the user's cache folder, one for each host.

    Not in ``$XDG_RUNTIME_DIR``: that is removed when the user logs out, and jobs go on.
    """
    if given := os.environ.get("HPCDET_LOCAL_STATE"):
        return Path(given)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "hpcdet" / "local" / socket.gethostname()


def refuse_foreign(state: Path) -> None:
    """Refuse a state folder that another user could have written or replaced.

    Scripts that it names are run as the user.

    Raises:
        Unavailable: with the folder and what to do.
    """
    hint = "let HPCDET_LOCAL_STATE name a folder that only you can write, as in your home"
    state = state.resolve()
    private_folders.refuse_exchangeable(state, hint)
    for folder in (state, *(state / name for name in PARTS)):
        if os.path.lexists(folder):
            private_folders.refuse_foreign(folder, hint)


@dataclass(frozen=True)
class JobRequest:
    """The request of a script, from its lines ``#HPCDET key=value``.

    Attributes:
        slots: ranks that run at once in one task.
        walltime_s: seconds until a task is ended; 0 is no limit.
        signal_lead_s: seconds before that at which it is told (SIGUSR2).
        kill_wait_s: seconds between SIGTERM and SIGKILL.
        output: folder where ``INDEX.log`` is appended; "" drops what the script prints.
    """

    slots: int = 1
    walltime_s: float = 0
    signal_lead_s: float = 120
    kill_wait_s: float = 30
    output: str = ""

    @staticmethod
    def parse(script: str) -> JobRequest:
        """Raises ValueError for a value that is no number."""
        given = dict(_REQUEST.findall(script))
        numbers = {
            key: float(given[key])
            for key in ("walltime_s", "signal_lead_s", "kill_wait_s")
            if given.get(key)
        }
        slots = int(given.get("slots") or 1)
        return JobRequest(slots=slots, output=given.get("output", ""), **numbers)


@dataclass(frozen=True)
class JobRecord(JsonRecord):
    """``job.json``.

    Attributes:
        slots: how many ranks may run on this machine at once.
        devices: its accelerators, as ``CUDA_VISIBLE_DEVICES`` names them; slot ``i`` has device
            ``i`` modulo their number.
    """

    name: str
    tag: str
    script: str
    tasks: int
    throttle: int
    slots: int
    devices: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    submitted_at: str = ""

    def name_of(self, slot: int) -> str:
        """Return a slot's name for all jobs: that of its device, whichever devices a job sees.

        Where ranks share a device, the later ones are told apart.
        """
        if not self.devices:
            return str(slot)
        further, which = divmod(slot, len(self.devices))
        return f"{self.devices[which]}/{further}" if further else self.devices[which]


@dataclass(frozen=True)
class ProcessRecord(JsonRecord):
    """A process and its start time: ``supervisor.json`` and the entries of ``waiting/``."""

    pid: int
    start: int


@dataclass(frozen=True)
class TaskRecord(JsonRecord):
    """``tasks/3.json``. ``pid`` and ``start`` name the leader of the running task's session."""

    state: str
    restarts: int = 0
    pid: int = 0
    start: int = 0
    started_at: str = ""
    ended_at: str = ""
    exit_code: int | None = None


@dataclass(frozen=True)
class PlaceRecord(JsonRecord):
    """An entry of ``running/``.

    Attributes:
        slots: the numbers of those it holds, in its own job.
        names: what all jobs call them; former versions wrote numbers only.
    """

    pid: int
    start: int
    slots: list[int]
    names: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class JobFolder:
    """``jobs/ID``."""

    root: Path

    @property
    def id(self) -> str:
        return self.root.name

    @property
    def state(self) -> Path:
        return self.root.parent.parent

    @property
    def record(self) -> Path:
        return self.root / "job.json"

    @property
    def supervisor(self) -> Path:
        return self.root / "supervisor.json"

    @property
    def throttle(self) -> Path:
        return self.root / "throttle"

    @property
    def hold(self) -> Path:
        return self.root / "hold"

    def task(self, index: int) -> Path:
        return self.root / "tasks" / f"{index}.json"

    def cancel(self, index: int | None) -> Path:
        return self.root / ("cancel" if index is None else f"cancel.{index}")

    def place(self, index: int) -> Path:
        return self.state / "running" / f"{self.id}.{index}"

    @property
    def waiting(self) -> Path:
        return self.state / "waiting" / self.id

    def supervised(self) -> bool:
        """Whether the process that runs this job lives."""
        record = ProcessRecord.read(self.supervisor)
        return record is not None and processes.alive(record.pid, record.start)


@contextlib.contextmanager
def locked(state: Path) -> Iterator[None]:
    """Alone among all supervisors of this user on this machine."""
    fd = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, files.FILE_MODE)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def slots_taken(state: Path) -> set[str]:
    """Names of the slots that living tasks of all jobs hold; entries of dead ones are cleared.

    Hold the lock.
    """
    taken: set[str] = set()
    for entry in (state / "running").iterdir():
        place = PlaceRecord.read(entry)
        if place is not None and processes.session_alive(place.pid, place.start):
            taken.update(place.names or map(str, place.slots))
        else:
            entry.unlink(missing_ok=True)  # a supervisor removes its own without the lock
    return taken


def somebody_before(job: JobFolder) -> bool:
    """Whether an older job waits for places. Hold the lock."""
    for entry in (job.state / "waiting").iterdir():
        record = ProcessRecord.read(entry)
        if record is None or not processes.alive(record.pid, record.start):
            entry.unlink(missing_ok=True)
        elif entry.name < job.id:
            return True
    return False
