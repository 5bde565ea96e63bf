"""``python -m hpcdet.control.notices.deliver EXP``: send what waits, in a minute at most.

``tend`` starts it after a turn, so that no turn waits for a network. It tries each notice once; of
a channel that fails, the later ones wait as well, so that they arrive in order.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from hpcdet.control.notices import mail, webhook
from hpcdet.control.notices.not_sent import NotSent
from hpcdet.errors import HpcdetError
from hpcdet.read.experiment import changes
from hpcdet.read.experiment.gather import gather
from hpcdet.site_files.load_site import from_resolved
from hpcdet.store.config import data_secrets
from hpcdet.store.config.notify_keys import Notify
from hpcdet.store.decisions import outbox
from hpcdet.store.decisions.outbox import Pending
from hpcdet.store.folder import trust
from hpcdet.store.folder.held_folder import hold
from hpcdet.store.folder.layout import ExperimentPaths

LIMIT_S = 55.0
"""Of one process; shorter than a third of ``outbox.STALE_S``."""
_ENOUGH_S = 30.0
"""No other notice is begun after so long."""
_EVERY_S = 30.0
"""Between two starts for one experiment, unless something new waits."""
_AT_END_S = 10.0
"""A process that ends waits so long for what is being sent."""

_running: dict[Path, subprocess.Popen[bytes]] = {}
_next: dict[Path, float] = {}
_again: set[Path] = set()
"""Something new waits, which the running process may not have seen."""


def send_all(paths: ExperimentPaths) -> None:
    """Send what waits and is due.

    Raises:
        ConfigError: another user may change the experiment, or it cannot be read.
    """
    held = hold(paths.root)
    trust.refuse_to_run(held.paths.code)
    paths, until = held.paths, time.monotonic() + _ENOUGH_S
    notify = changes.effective(gather(paths), pending=False).notify
    sendmail = from_resolved(paths.site).sendmail
    tried: set[tuple[str, str]] = set()
    held_up: set[str] = set()
    while time.monotonic() < until:
        chosen = next((one for one in outbox.pending(paths) if _is_free(one, tried, held_up)), None)
        if chosen is None:
            return
        tried.add((chosen.key, chosen.channel))
        if not chosen.due() or not _send(chosen, notify, paths, sendmail):
            held_up.add(chosen.channel)


def _is_free(one: Pending, tried: set[tuple[str, str]], held_up: set[str]) -> bool:
    return (one.key, one.channel) not in tried and one.channel not in held_up


def _send(one: Pending, notify: Notify, paths: ExperimentPaths, sendmail: str) -> bool:
    """Send one notice by one channel; False if that did not work, or another process does it."""
    claim = one.claim()
    if claim is None:
        return False
    try:
        if one.channel not in notify.channels:
            one.mark_sent(claim, f"notify.{one.channel} is not set any more")
            return True
        if one.channel == "email":
            mail.hand_over(sendmail, one.notice, paths.id, notify.recipients)
        else:
            url, secret = _secret(notify, "url", paths), _secret(notify, "secret", paths)
            webhook.post(url or "", secret, one.notice, paths.id)
    except (NotSent, HpcdetError) as error:
        one.mark_failed(claim, str(error))
        return False
    one.mark_sent(claim)
    return True


def _secret(notify: Notify, name: str, paths: ExperimentPaths) -> str | None:
    reference = getattr(notify.webhook, name)
    key = f"notify.webhook.{name}"
    return str(data_secrets.value(key, reference, paths.secrets)) if reference else None


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
    if root not in _again and time.monotonic() < _next.get(root, 0.0):
        return
    with contextlib.suppress(HpcdetError, OSError):
        if not any(one.due() for one in outbox.pending(paths)):
            return
        _next[root] = time.monotonic() + _EVERY_S
        _running[root] = subprocess.Popen(
            [sys.executable, "-Pm", "hpcdet.control.notices.deliver", str(root)],
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


def main(argv: list[str]) -> int:
    """Return 0 once nothing is left to try; 1 if the experiment is not one to send for."""
    watchdog = threading.Timer(LIMIT_S, os._exit, (1,))  # a look-up of names heeds no limit
    watchdog.daemon = True
    watchdog.start()
    try:
        send_all(ExperimentPaths(Path(argv[0]).absolute()))
    except (HpcdetError, OSError):
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
