"""Handing a signal on to whatever a command has started.

Shells, pipelines and launchers between a rank and its script hand no signal on, and may die of
it. So a command begins with notices ignored, which all below it inherit, until a script says what
it does about them: that one is told. What it has started itself (a loader's workers) it leaves
alone until it has saved, and so does this.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_START = 19  # field of /proc/PID/stat behind the command's name


class Descendants:
    """A process of this one's and those below it, as ``/proc`` knows them."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._told: set[tuple[int, str]] = set()  # numbers are used again: with their start

    def tell(self, number: signal.Signals) -> None:
        """Send a signal to those that have a handler for it and have not got it yet.

        Call it again for those that come later, or begin to listen.
        """
        waiting = [self._root]
        while waiting:
            pid = waiting.pop()
            with contextlib.suppress(OSError):  # it has ended
                if _hears(pid, number):
                    self._send(pid, number)
                else:
                    waiting += _children(pid)

    def _send(self, pid: int, number: signal.Signals) -> None:
        behind = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2]
        process = (pid, behind.split()[_START])
        if process not in self._told:
            os.kill(pid, number)
            self._told.add(process)


def _hears(pid: int, number: signal.Signals) -> bool:
    """True where a process has a handler for the signal, and does not hold it back."""
    masks = {"SigCgt": 0, "SigBlk": 0}
    for line in (_PROC / str(pid) / "status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in masks:
            masks[name] = int(value, 16)
    return bool(masks["SigCgt"] & ~masks["SigBlk"] & 1 << (number - 1))


def _children(pid: int) -> Iterator[int]:
    """Those of all its threads."""
    for thread in (_PROC / str(pid) / "task").iterdir():
        yield from map(int, (thread / "children").read_text().split())
