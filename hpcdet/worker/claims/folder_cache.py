"""A value cached from a few folders, read again only when their modification times change.

A folder's time changes whenever a name in it is added or removed, so that one request to the file
server replaces some twenty reads. Two names may be added within one tick of a file system's clock:
a value that has changed is read once more some seconds later. Every value is also read from time
to time regardless, in case a file was written in place.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from hpcdet.control.leader.trial_cache import AGAIN_S, TICK_S, looks

Value = TypeVar("Value")


class Glance(Generic[Value]):
    """A cached value that is read from files.

    Args:
        read: reads it.
        folders: those in which a name comes or goes whenever a value becomes another one; none:
            that cannot be said, and it is read each time.
        clock: real seconds, as the times of files are.

    Attributes:
        value: as it was read last; absent before the first ``look``.
    """

    value: Value

    def __init__(
        self,
        read: Callable[[], Value],
        folders: Callable[[Value], tuple[Path, ...]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._folders = folders
        self._clock = clock
        self._watched: tuple[str, ...] = ()
        self._looks: tuple[int, ...] = ()
        self._changed = self._read_at = 0.0

    def look(self) -> Value:
        """The value now.

        Raises:
            OSError: the storage is unavailable; ``value`` is as before.
        """
        if not self._is_as_before():
            now = self._clock()
            value = self._read()
            watched = tuple(map(str, self._folders(value)))
            seen = looks(watched)
            if (watched, seen) != (self._watched, self._looks):
                self._watched, self._looks, self._changed = watched, seen, now
            self.value, self._read_at = value, now
        return self.value

    def _is_as_before(self) -> bool:
        if not self._watched or self._read_at - self._changed < TICK_S:
            return False
        return self._clock() - self._read_at < AGAIN_S and looks(self._watched) == self._looks
