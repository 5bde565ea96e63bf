"""Messages that wait to be sent: what one process cannot send, a later one can.

``messages/KEY.json`` is a message, made before its event counts as told. For each channel there is:

- ``KEY.CHANNEL.claim-N.json``: a process sends it now. Who fails, removes its own claim. One that
  was left behind holds others up for ``STALE_S``; the next claim has the next number.
- ``KEY.CHANNEL.failed.json``: the last failure, replaced by the next.
- ``KEY.CHANNEL.sent.json``: it is sent, and never again. Who dies between sending and writing this
  makes another process send it again, with the same id.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Channel, Occasion
from hpcdet.store.fs import files
from hpcdet.store.fs.json_record import JsonRecord

STALE_S = 180.0
"""A sender is gone that claimed so long ago: it ends itself before a third of this."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 30.0, 3600.0
"""After a failure, on the same host; each further one doubles it."""

_MESSAGE = re.compile(r"([0-9a-f]{16})\.json")
_CLAIM = re.compile(r"claim-(\d+)\.json")


@dataclass(frozen=True)
class Message(JsonRecord):
    """``messages/KEY.json``: an event that messages are sent about.

    Attributes:
        id: of the delivery, the same however often it is repeated.
        what: the event, unique in the experiment.
        name: of the experiment then.
        channels: by what it is to be sent.
    """

    id: str
    event: Occasion
    what: str
    why: str = ""
    name: str = ""
    channels: list[Channel] = field(default_factory=list)
    at: str = ""


@dataclass(frozen=True)
class SendClaim(JsonRecord):
    """``KEY.CHANNEL.claim-1.json``: who sends it."""

    host: str
    pid: int
    at: str = ""


@dataclass(frozen=True)
class Unsent(JsonRecord):
    """``KEY.CHANNEL.failed.json``: the last of ``tries`` failures, on ``host``."""

    why: str
    tries: int
    host: str = ""
    at: str = ""


@dataclass(frozen=True)
class Sent(JsonRecord):
    """``KEY.CHANNEL.sent.json``: when it was sent, from where; or ``why`` it never will be."""

    host: str
    why: str = ""
    at: str = ""


@dataclass(frozen=True)
class Pending:
    """A message that is not sent by one of its channels."""

    folder: Path
    key: str
    message: Message
    channel: Channel
    failed: Unsent | None

    def _file(self, name: str) -> Path:
        return self.folder / f"{self.key}.{self.channel}.{name}.json"

    def due(self) -> bool:
        """True unless it failed on this host a short time ago."""
        last = self.failed
        if last is None or last.host != socket.gethostname() or not last.at:
            return True
        pause = min(FIRST_PAUSE_S * 2.0 ** min(last.tries - 1, 20), LONGEST_PAUSE_S)
        age = (datetime.now(UTC) - datetime.fromisoformat(last.at)).total_seconds()
        return not 0 <= age < pause

    def is_sent(self) -> bool:
        """True if it is sent by now."""
        return self._file("sent").exists()

    def claim(self) -> Path | None:
        """Return this process's claim to send it; None if another one sends it, or has sent it."""
        prefix = f"{self.key}.{self.channel}."
        names = [name.removeprefix(prefix) for name in os.listdir(self.folder)]
        numbers = [int(found[1]) for name in names if (found := _CLAIM.fullmatch(name))]
        newest = max(numbers, default=0)
        # of one from the future, the clock has been set back since
        if newest and abs(self._age_s(self._file(f"claim-{newest}"))) < STALE_S:
            return None
        mine = self._file(f"claim-{newest + 1}")
        if not SendClaim(socket.gethostname(), os.getpid(), files.now()).write_once(mine):
            return None
        if self.is_sent():  # since it was looked at
            mine.unlink(missing_ok=True)
            return None
        return mine

    def _age_s(self, claim: Path) -> float:
        """Return the age of a claim by the clock of the file system, which dates both."""
        probe = self.folder / f".clock.{secrets.token_hex(8)}.tmp"
        probe.touch(mode=files.FILE_MODE)
        try:
            return probe.stat().st_mtime - claim.stat().st_mtime
        except FileNotFoundError:  # its process has just failed
            return 0.0
        finally:
            probe.unlink()

    def mark_sent(self, claim: Path, why: str = "") -> None:
        """Record that it was sent, or why it never will be; on a full disk by the claim's name."""
        try:
            Sent(socket.gethostname(), why, files.now()).write_once(self._file("sent"))
        except OSError:
            claim.rename(self._file("sent"))
        for file in (self._file("failed"), claim):
            with contextlib.suppress(OSError):
                file.unlink()

    def mark_failed(self, claim: Path, why: str) -> None:
        """Record that it was not sent, and let others try."""
        tries = self.failed.tries + 1 if self.failed else 1
        last = Unsent(why, tries, socket.gethostname(), files.now())
        files.replace(self._file("failed"), last.encode())
        claim.unlink(missing_ok=True)


def put(
    paths: ExperimentPaths,
    what: str,
    event: Occasion,
    why: str,
    name: str,
    channels: Sequence[Channel],
) -> None:
    """Add a message, once for each ``what``; durable when this returns."""
    key = hashlib.sha256(what.encode()).hexdigest()[:16]
    id = secrets.token_hex(16)
    message = Message(id, event, what, why, name, list(channels), files.now())
    message.write_once(paths.messages / f"{key}.json")


def pending(paths: ExperimentPaths) -> list[Pending]:
    """Return what is not sent yet, in the order in which it happened.

    Raises:
        IntegrityError: a message is no file, or holds what hpcdet never writes.
    """
    return sorted(_pending(paths), key=lambda one: (one.message.at, one.key, one.channel))


def _pending(paths: ExperimentPaths) -> Iterator[Pending]:
    folder = paths.messages
    try:
        names = set(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    for key in (found[1] for name in names if (found := _MESSAGE.fullmatch(name))):
        left = [one for one in get_args(Channel) if f"{key}.{one}.sent.json" not in names]
        message = Message.read(folder / f"{key}.json") if left else None
        if message is None:
            continue
        for channel in left:
            if channel in message.channels:
                failed = Unsent.read(folder / f"{key}.{channel}.failed.json")
                yield Pending(folder, key, message, channel, failed)
