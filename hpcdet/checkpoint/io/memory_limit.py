"""How much memory this process may still take: of the host, and of its cgroups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")


def available(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Bytes that can be taken without swapping and without being killed for it.

    The least of what the kernel calls available and what is left under each limit above this
    process. What the page cache holds of files counts as free. Unknown limits are none.
    """
    left = [_meminfo(proc / "meminfo"), *_limits(proc / "self" / "cgroup", cgroups)]
    return max(0, min(left))


def _meminfo(path: Path) -> int:
    for line in _lines(path):
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) << 10
    return 1 << 62


def _limits(own: Path, cgroups: Path) -> Iterator[int]:
    for line in _lines(own):
        _, controllers, group = line.split(":", 2)
        if not controllers:
            names = ("memory.max", "memory.current", "inactive_file")
            yield from _above(cgroups, group, names)
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _above(cgroups / "memory", group, names)


def _above(mount: Path, group: str, names: tuple[str, str, str]) -> Iterator[int]:
    """Memory left in a group and in those above it; in a container only its own may be visible."""
    folder = mount / group.lstrip("/")
    while True:
        limit, used = _number(folder / names[0]), _number(folder / names[1])
        if limit is not None and used is not None:
            cached = 0
            for line in _lines(folder / "memory.stat"):
                name, _, value = line.partition(" ")
                if name == names[2]:
                    cached = int(value)
            yield limit - used + cached
        if folder == mount or mount not in folder.parents:
            return
        folder = folder.parent


def _number(path: Path) -> int | None:
    text = next(iter(_lines(path)), "")
    return int(text) if text.isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return []
