"""The kernel's counter of processes that it has killed for memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

_CONTROL = Path("/sys/fs/cgroup")
_OF_V1, _OF_V2, _OF_ALL = "memory.oom_control", "memory.events", Path("/proc/vmstat")


def of_group(root: Path = _CONTROL, membership: Path = Path("/proc/self/cgroup")) -> int:
    """Return the count of this process's control group, which is its job's or its step's.

    Where the kernel keeps none, it is that of the whole machine.
    """
    for place in _places(root, membership):
        if (found := _count(place)) is not None:
            return found
    return of_machine()


def of_machine() -> int:
    """Return how many processes were killed on this machine since boot."""
    return _count(_OF_ALL) or 0


def _places(root: Path, membership: Path) -> Iterator[Path]:
    """The counters that this process's death would raise, the nearest first."""
    with contextlib.suppress(OSError):
        for line in membership.read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            inside = Path(group.lstrip("/"))
            for folder in (inside, *inside.parents):
                if not controllers:
                    yield root / folder / _OF_V2
                elif controllers == "memory":
                    yield root / controllers / folder / _OF_V1


def _count(path: Path) -> int | None:
    with contextlib.suppress(OSError):
        for line in path.read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None
