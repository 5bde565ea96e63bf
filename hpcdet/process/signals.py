"""Signals that say "leave soon". A handler only sets a flag.

TERM and USR2 mean the same, may come twice or never. USR1 and CONT are ignored (Slurm sends
CONT before TERM; NCCL and others are said to catch USR1). Handlers must be in place before
torch is imported, which takes seconds: this module imports nothing that is slow.
"""

from __future__ import annotations

import atexit
import signal
import time
from types import FrameType

NOTICES = (signal.SIGTERM, signal.SIGUSR2)
_IGNORED = (signal.SIGUSR1, signal.SIGCONT)

_heard: list[tuple[int, float]] = []


def _hear(number: int, _frame: FrameType | None) -> None:
    _heard.append((number, time.time()))


def install() -> None:
    """Take notices from now on; those that were blocked until now arrive at once.

    Python takes its handlers away at its very end: one that comes then is nobody's.
    """
    for number in NOTICES:
        signal.signal(number, _hear)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, NOTICES)
    atexit.unregister(ignore)
    atexit.register(ignore)


def hold() -> None:
    """Block notices; they stay pending over ``exec`` until the new program calls ``install``."""
    signal.pthread_sigmask(signal.SIG_BLOCK, NOTICES)
    if _heard:  # before, or by another thread: hand it on
        signal.raise_signal(signal.Signals(_heard[0][0]))


def ignore() -> None:
    """For helper processes: the rank they serve decides when to leave."""
    for number in (*NOTICES, *_IGNORED):
        signal.signal(number, signal.SIG_IGN)


def heard() -> str:
    """Name of the first notice that came, or "" while none did."""
    return signal.Signals(_heard[0][0]).name if _heard else ""


def heard_at() -> float | None:
    """When that came, epoch seconds: ranks agree on it some steps later."""
    return _heard[0][1] if _heard else None


def forget() -> None:
    """Forget all notices: for a process that goes on with something else."""
    _heard.clear()
