"""Operations of one process that the metadata server of a file system has to answer."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any


class Metadata:
    """Counts what this process asks a metadata server: opens, looks, listings, removals."""

    def __init__(self) -> None:
        self.count = 0
        self._on = False
        self._stat = os.stat
        sys.addaudithook(self._hear)  # there is no way to take it away again

    def _hear(self, event: str, args: Any) -> None:
        if self._on and event in ("open", "os.listdir", "os.scandir", "os.remove", "os.rename"):
            self.count += not isinstance(args[0], int)  # a descriptor was opened before

    def _look(self, *args: Any, **options: Any) -> os.stat_result:
        self.count += self._on
        return self._stat(*args, **options)

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        os.stat, self._on = self._look, True
        try:
            yield
        finally:
            os.stat, self._on = self._stat, False
