"""The user's hook: a command that is run once for each notable event."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable

from hpcdet.control.leader.leader import Holder
from hpcdet.errors import ConfigError
from hpcdet.store.folder import trust
from hpcdet.store.folder.held_folder import Held, hold
from hpcdet.store.folder.layout import ExperimentPaths

LIMIT_S = 60.0


def notify(holder: Holder, event: str, kind: str, why: str) -> None:
    """Run ``notify.command`` once for an event, if the config wants events of its kind.

    Args:
        event: what happened, unique in the experiment: ``end``, ``failure 3``, …
        kind: ``end``, ``failure`` or ``stuck``.

    The command's environment has ``HPCDET_EVENT HPCDET_EXPERIMENT HPCDET_FOLDER HPCDET_WHY``. It
    may take a minute, and its failure does not affect the experiment.
    """
    wishes = holder.resolved.notify
    if event in holder.decided.notified or not wishes.command or kind not in wishes.on:
        return
    holder.record("notify", event=event, why=why)
    holder.fence()
    try:
        code = run_hook(
            holder.paths,
            wishes.command,
            kind,
            why,
            beat=holder.lease.beat,
            held=holder.hands.held,
        )
    except (OSError, ConfigError) as error:
        holder.actions.append(f"hook for {event} failed: {error}")
        return
    holder.actions.append(f"hook for {event}: exit {code}")


def run_hook(
    paths: ExperimentPaths,
    command: str | list[str],
    kind: str,
    why: str,
    beat: Callable[[], None] = lambda: None,
    held: Held | None = None,
) -> int:
    """Run a hook and return its exit status. It is killed after a minute.

    Args:
        beat: called every second, to keep what must be kept meanwhile.
        held: the folder that the command was read from, if it is open.

    Raises:
        OSError: it could not be started.
        ConfigError: another user may change the experiment.
    """
    held = held or hold(paths.root)
    trust.refuse_to_run(held.paths.code)
    environment = {
        **os.environ,
        "HPCDET_EVENT": kind,
        "HPCDET_EXPERIMENT": paths.id,
        "HPCDET_FOLDER": str(paths.root),
        "HPCDET_WHY": why,
    }
    process = subprocess.Popen(
        ["sh", "-c", command] if isinstance(command, str) else command,
        env=environment,
        cwd=held.root,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        try:
            return process.wait(1.0)
        except subprocess.TimeoutExpired:
            beat()
    os.killpg(process.pid, signal.SIGKILL)
    return process.wait()
