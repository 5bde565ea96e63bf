"""``python -m hpcdet.control.messages.deliver EXP``: send what waits, in a minute at most.

It tries each message once; of a channel that fails, the later ones wait as well, so that they
arrive in order, unless it refuses this one alone. A process of its own (``sender_process``), so
that no turn waits for a network.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

from hpcdet.control.messages import mail, webhook
from hpcdet.control.messages.not_sent import NotSent
from hpcdet.errors import HpcdetError
from hpcdet.read.experiment import changes
from hpcdet.read.experiment.gather import gather
from hpcdet.site_files.load_site import from_resolved
from hpcdet.store.config import data_secrets
from hpcdet.store.config.sections.notify_keys import Notify
from hpcdet.store.decisions import outbox
from hpcdet.store.decisions.outbox import Pending
from hpcdet.store.folder import trust
from hpcdet.store.folder.held_folder import hold
from hpcdet.store.folder.layout import ExperimentPaths

LIMIT_S = 55.0
"""Of one process; shorter than a third of ``outbox.STALE_S``."""
_ENOUGH_S = 30.0
"""No other message is begun after so long."""


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
    while new := [one for one in outbox.pending(paths) if (one.key, one.channel) not in tried]:
        for one in new:
            if time.monotonic() > until:
                return
            tried.add((one.key, one.channel))
            may_send = one.channel not in held_up and one.due()
            if not may_send or not _send(one, notify, paths, sendmail):
                held_up.add(one.channel)


def _send(one: Pending, notify: Notify, paths: ExperimentPaths, sendmail: str) -> bool:
    """Send one message by one channel; False if the later ones are to wait.

    That is where it did not work, but for a message that alone is refused, and where another
    process is at it.
    """
    claim = one.claim()
    if claim is None:
        return one.is_sent()
    try:
        if one.channel not in notify.channels:
            one.mark_sent(claim, f"notify.{one.channel} is not set any more")
            return True
        if one.channel == "email":
            mail.hand_over(sendmail, one.message, paths.id, notify.recipients)
        else:
            url, secret = _secret(notify, "url", paths), _secret(notify, "secret", paths)
            webhook.post(url or "", secret, one.message, paths.id)
    except (NotSent, HpcdetError) as error:
        one.mark_failed(claim, str(error))
        return isinstance(error, NotSent) and error.alone
    except Exception as error:  # whose text may hold a secret
        one.mark_failed(claim, type(error).__name__)
        return False
    one.mark_sent(claim)
    return True


def _secret(notify: Notify, name: str, paths: ExperimentPaths) -> str | None:
    reference = getattr(notify.webhook, name)
    key = f"notify.webhook.{name}"
    return str(data_secrets.value(key, reference, paths.secrets)) if reference else None


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
