"""The process beside a holder of the lease that sends messages; no turn waits for it."""

from __future__ import annotations

import atexit
import contextlib
import subprocess
import sys
import time
from pathlib import Path

from hpcdet.errors import HpcdetError
from hpcdet.store.decisions import outbox
from hpcdet.store.folder.layout import ExperimentPaths

_EVERY_S = 30.0
"""Between two looks at what one experiment has to send, unless something new waits."""
_AT_END_S = 10.0
"""A process that ends waits so long for what is being sent."""

_running: dict[Path, subprocess.Popen[bytes]] = {}
_next: dict[Path, float] = {}
_again: set[Path] = set()
"""Something new waits, which the running process may not have seen."""


def tend(paths: ExperimentPaths, *, new: bool = False) -> None:
    """Start a process that sends, if anything is due and none of this process is at it.

    Args:
        new: something waits that has not been tried yet.
    """
    root = paths.root
    if new:
        _again.add(root)
    if (process := _running.get(root)) is not None:
        if process.poll() is None:
            return
        del _running[root]
    now = time.monotonic()
    if root not in _again and now < _next.get(root, 0.0):
        return
    _next[root] = now + _EVERY_S
    with contextlib.suppress(HpcdetError, OSError):
        if not any(one.due() for one in outbox.pending(paths)):
            return
        _running[root] = subprocess.Popen(
            [sys.executable, "-Pm", "hpcdet.control.messages.deliver", str(root)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        _again.discard(root)


@atexit.register
def finish(within_s: float = _AT_END_S) -> None:
    """Wait for what is being sent, and leave it to itself after so long."""
    until = time.monotonic() + within_s
    for root in [*_running]:
        for _ in range(2):  # once more for what came while it ended
            with contextlib.suppress(subprocess.TimeoutExpired):
                _running[root].wait(max(0.0, until - time.monotonic()))
            if root not in _again:
                break
            tend(ExperimentPaths(root))
            if root not in _running:
                break
