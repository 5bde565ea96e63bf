"""The daemons of an experiment, whether or not they hold the lease at the moment.

While a worker or another command holds the lease, a daemon waits without a term of its own. So it
writes a file, ``searcher/daemon-HOST.json``, which distinguishes its process from a later one of
the same number.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hpcdet.schedulers.common import processes
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files
from hpcdet.store.fs.json_record import JsonRecord

_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Daemon(JsonRecord):
    """``searcher/daemon-HOST.json``.

    Attributes:
        start: when the process started, in clock ticks since boot.
        boot: of the machine; another one tells that it is not running any more.
    """

    pid: int
    start: int
    boot: str = ""
    at: str = ""

    @property
    def lives(self) -> bool:
        """True if the process runs on this host."""
        return self.boot == _boot() and processes.alive(self.pid, self.start)


@contextlib.contextmanager
def tell(paths: ExperimentPaths) -> Iterator[None]:
    """Register this process as the daemon of this host while it runs; the newest one wins.

    On a full disk it is not registered: then the lease shows where it runs, once it holds that.
    """
    path = paths.daemon(socket.gethostname())
    pid = os.getpid()
    mine = Daemon(pid, processes.started(pid) or 0, _boot(), files.now())
    with contextlib.suppress(OSError):
        files.replace(path, mine.encode())
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if Daemon.read(path) == mine:
                path.unlink()


def here(paths: ExperimentPaths) -> Daemon | None:
    """Return the daemon that runs on this host; None if none is registered."""
    found = Daemon.read(paths.daemon(socket.gethostname()))
    return found if found is not None and found.lives else None


def elsewhere(paths: ExperimentPaths) -> dict[str, Daemon]:
    """Return the daemons of other hosts by host; whether they still run is unknown here."""
    home, host = paths.daemon("*"), socket.gethostname()
    before, _, after = home.name.partition("*")
    found = {
        path.name.removeprefix(before).removesuffix(after): Daemon.read(path)
        for path in sorted(home.parent.glob(home.name))
    }
    return {name: one for name, one in found.items() if one is not None and name != host}


def _boot() -> str:
    with contextlib.suppress(OSError):
        return _BOOT.read_text().strip()
    return ""
