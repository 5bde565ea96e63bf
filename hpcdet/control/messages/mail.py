"""A message as a mail, by the site's sendmail."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from email import policy
from email.message import EmailMessage

from hpcdet.control.messages.not_sent import NotSent
from hpcdet.store.config.sections.notify_keys import is_address
from hpcdet.store.decisions.outbox import Message

LIMIT_S = 20.0
_LONGEST_SUBJECT = 200


def encoded(message: Message, experiment: str, to: Sequence[str]) -> bytes:
    """Return the mail, lines ending in a newline as sendmail takes them.

    Whatever names and reasons hold, they are text of the subject and the body, and no header.
    """
    mail = EmailMessage(policy=policy.default.clone(linesep="\n"))
    name = f" ({_line(message.name)})" if message.name else ""
    mail["Subject"] = _line(f"hpcdet {experiment}{name}: {message.event}: {message.why}")
    mail["To"] = ", ".join(to)
    mail["Message-ID"] = f"<{message.id}@hpcdet.invalid>"
    mail["Auto-Submitted"] = "auto-generated"
    mail["X-Hpcdet-Delivery"] = message.id
    mail.set_content(
        f"Experiment {experiment}{name}\n{message.event} at {message.at}\n\n{message.why}\n\n"
        f"hpcdet status {experiment}\n"
    )
    return mail.as_bytes()


def hand_over(sendmail: str, message: Message, experiment: str, to: Sequence[str]) -> None:
    """Give a mail to sendmail.

    Raises:
        NotSent: it is not there, did not take it, or not in time.
    """
    for address in to:
        if not is_address(address):
            raise NotSent(f"notify.email: {address!r} is no address")
    data = encoded(message, experiment, to)
    try:
        process = subprocess.Popen(
            [sendmail, "-t", "-i"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise NotSent(f"{sendmail}: {error.strerror}") from None
    try:
        process.communicate(data, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise NotSent(f"{sendmail} did not end in {LIMIT_S:.0f} s") from None
    if process.returncode:
        raise NotSent(f"{sendmail} ended with {process.returncode}")


def _line(text: str) -> str:
    """Return text as one line without control characters."""
    plain = "".join(letter if letter.isprintable() else " " for letter in text)
    return " ".join(plain.split())[:_LONGEST_SUBJECT]
