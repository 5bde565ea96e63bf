"""Telling people of an event, once: by the user's hook, a webhook, a mail."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable

from hpcdet.control.leader.leader import Holder
from hpcdet.errors import ConfigError
from hpcdet.store.config.sections.notify_keys import Notify
from hpcdet.store.decisions import outbox
from hpcdet.store.folder import trust
from hpcdet.store.folder.held_folder import Held, hold
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Occasion

LIMIT_S = 60.0
_LONGEST = 32_000
"""Characters: of a variable, the kernel takes 128 KiB."""


def wanted(wishes: Notify, kind: Occasion) -> bool:
    """True if the config wants somebody to be told of events of a kind, by whatever means."""
    return kind in wishes.on and bool(wishes.command or wishes.channels)


def notify(holder: Holder, event: str, kind: Occasion, why: str) -> None:
    """Tell people of an event once, if the config wants events of its kind.

    A message is left for ``control.messages``, which sends it beside the turn; the hook runs here.

    Args:
        event: what happened, unique in the experiment: ``end``, ``failure 3``, …

    The command's environment has ``HPCDET_EVENT HPCDET_EXPERIMENT HPCDET_FOLDER HPCDET_WHY``. It
    may take a minute, and its failure does not affect the experiment.
    """
    wishes = holder.resolved.notify
    if event in holder.decided.notified or not wanted(wishes, kind):
        return
    holder.fence()
    leave(holder.paths, wishes, event, kind, why, holder.resolved.name)
    holder.left_message = bool(wishes.channels) or holder.left_message
    holder.record("notify", event=event, why=why)
    if not wishes.command:
        return
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


def leave(
    paths: ExperimentPaths, wishes: Notify, event: str, kind: Occasion, why: str, name: str
) -> None:
    """Leave a message to be sent, once, if the config names a channel."""
    if wishes.channels:
        outbox.put(paths, event, kind, _told(why), name, wishes.channels)


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
        "HPCDET_WHY": _told(why),
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


def _told(text: str) -> str:
    """Return text as mails and variables can hold it, whatever an error of the user says."""
    return text[:_LONGEST].encode(errors="replace").decode().replace("\0", "?")
