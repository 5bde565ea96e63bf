"""The user's hook: a command that is run once for each thing worth telling."""

from __future__ import annotations

import os
import signal
import subprocess
import time

from hpcdet.control.holder import Holder

LIMIT_S = 60.0


def notify(holder: Holder, event: str, kind: str, why: str) -> None:
    """Run ``notify.command`` if it wants events of this kind and has not heard of this one.

    Args:
        event: what happened, unique in the experiment: ``end``, ``failure 3``, …
        kind: ``end``, ``failure`` or ``stuck``.

    The command sees ``HPCDET_EVENT HPCDET_EXPERIMENT HPCDET_FOLDER HPCDET_WHY``. It has a
    minute, and nothing that it does can hurt the experiment.
    """
    wishes = holder.resolved.notify
    if event in holder.decided.notified or not wishes.command or kind not in wishes.on:
        return
    holder.record("notify", event=event, why=why)
    holder.fence()
    environment = {
        **os.environ,
        "HPCDET_EVENT": kind,
        "HPCDET_EXPERIMENT": holder.paths.id,
        "HPCDET_FOLDER": str(holder.paths.root),
        "HPCDET_WHY": why,
    }
    argv = ["sh", "-c", wishes.command] if isinstance(wishes.command, str) else wishes.command
    try:
        process = subprocess.Popen(
            argv,
            env=environment,
            cwd=holder.paths.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        holder.actions.append(f"hook for {event} failed: {error.strerror}")
        return
    holder.actions.append(f"hook for {event}: exit {_wait(holder, process)}")


def _wait(holder: Holder, process: subprocess.Popen[bytes]) -> int:
    """Exit status; what is left after a minute is killed. The lease is kept meanwhile."""
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        try:
            return process.wait(1.0)
        except subprocess.TimeoutExpired:
            holder.lease.beat()
    os.killpg(process.pid, signal.SIGKILL)
    return process.wait()
