"""The one rule for how long something read from files counts as fresh.

A folder's time changes whenever a name in it is added or removed, and a journal's size whenever it
grows, so that a few requests to the file server replace the reading of many files. Two names may
be added within one tick of a file system's clock: what has just changed is read once more some
seconds later. Everything is also read from time to time regardless, in case a file was written in
place.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Value = TypeVar("Value")

TICK_S = 3.0
"""Longer than the tick of any file system's clock."""

AGAIN_S = 600.0
"""What looks as before is read again after so long, or up to twice."""

SKEW_S = 60.0
"""More than the clocks of this host and of a file server differ."""

Look = tuple[int, ...]
"""Time, size and number of a file or folder; empty if it does not exist."""


def looks(paths: Sequence[str]) -> list[Look]:
    """Return the looks of files and folders; opening them asks the server, not a cache."""
    found: list[Look] = []
    for path in paths:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError):
            found.append(())
            continue
        try:
            status = os.fstat(fd)
        finally:
            os.close(fd)
        found.append((status.st_mtime_ns, status.st_size, status.st_ino))
    return found


@dataclass(frozen=True)
class Seen:
    """The looks of the files and folders on which a value depends, and when it was read.

    Attributes:
        paths: none: what the value depends on is unknown, and it is read each time.
        changed: since when they look so, by the clock of ``read``; seconds.
    """

    paths: Sequence[str]
    looks: Sequence[Look]
    changed: float
    read: float

    @classmethod
    def now(
        cls,
        paths: Sequence[str],
        now: float,
        before: Seen | None = None,
        *,
        may_rest: bool = False,
        found: Sequence[Look] | None = None,
    ) -> Seen:
        """Return how the files look of which a value is read.

        Call it before the reading wherever it is known which files that will be: of what changes
        in between, the looks are then older than the value, and it is read once more.

        Args:
            may_rest: files that are older than ``SKEW_S`` by this host's clock count as settled,
                and are not read again after a tick: for readers whose value may be late where a
                file server's clock is off, and not for those who decide by it.
            found: the looks of ``paths``, where they were taken already.
        """
        found = looks(paths) if found is None else found
        seen = cls(paths, found, now, now)
        if before is not None and before.like(seen):
            return cls(paths, found, before.changed, now)
        newest = max((look[0] for look in found if look), default=0)
        rests = may_rest and time.time() - newest / 1e9 > SKEW_S
        return cls(paths, found, now - TICK_S, now) if rests else seen

    def like(self, other: Seen | None) -> bool:
        """True if the same files look the same."""
        return other is not None and (self.paths, self.looks) == (other.paths, other.looks)

    def is_due(self, now: float) -> bool:
        """True if the value is to be read again, however the files look.

        What was read together is not read again together: the time differs by path.
        """
        if not self.paths:
            return True
        part = zlib.crc32(self.paths[0].encode()) % 16 / 16
        rested = 0 <= now - self.read < AGAIN_S * (1 + part)
        return not rested or self.read - self.changed < TICK_S

    def holds(self, now: float) -> bool:
        """True if the value that was read is still what the files hold."""
        return not self.is_due(now) and looks(self.paths) == self.looks


class Watched(Generic[Value]):
    """A value cached from files.

    Args:
        read: reads it; with ``may_rest``, no sooner than it is used, so that the looks are older.
        paths: the files and folders that look different whenever the value becomes another one.
        clock: real seconds, as the times of files are.
        may_rest: see ``Seen.now``.

    Attributes:
        value: as it was read last; absent before the first ``refresh``.
    """

    value: Value

    def __init__(
        self,
        read: Callable[[], Value],
        paths: Callable[[Value], Sequence[str]],
        clock: Callable[[], float],
        *,
        may_rest: bool = False,
    ) -> None:
        self._read = read
        self._paths = paths
        self._clock = clock
        self._may_rest = may_rest
        self._seen: Seen | None = None

    def refresh(self) -> bool:
        """Bring the value up to date; return True if it was read again.

        Raises:
            OSError: the storage is unavailable; ``value`` is as before.
        """
        now, seen = self._clock(), self._seen
        due = seen is None or seen.is_due(now)
        found = looks(seen.paths) if seen is not None else []  # before the reading
        if seen is not None and not due and found == seen.looks:
            return False
        value = self._read()
        paths = self._paths(value)
        same = seen is not None and paths == seen.paths
        self._seen = Seen.now(
            paths, now, seen, may_rest=self._may_rest, found=found if same else None
        )
        self.value = value
        return True

    def expire(self) -> None:
        """Read the value again at the next ``refresh``, as a file of it was just written."""
        if (seen := self._seen) is not None:
            self._seen = Seen(seen.paths, seen.looks, self._clock(), seen.read)
