"""Heads of a ledger given to the anchors of a policy, beside the training.

An anchor that fails stops nothing: what it lacks is told. One that is slow gets the newest head
next: its hash stands for all records before it.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shlex
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hpcdet.policy.ledger import anchored
from hpcdet.policy.ledger.anchored import AnchoredHead
from hpcdet.policy.ledger.records import LedgerHead, LedgerOwner
from hpcdet.store.folder import trust
from hpcdet.store.fs import files
from hpcdet.train.checkpoints.background import Background

SYSLOG = "/dev/log"
PATIENCE_S = 10.0
"""For one head."""
LAST_S = 5.0
"""For the last heads of an attempt, all anchors together."""
_LOOK_S = 0.02
_APPENDED = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_READABLE = 0o644
"""Who may enter an anchor's folder may read in it."""
_NOTICE_OF_USER = 13

GiveUp = Callable[[], bool]
Deliver = Callable[[AnchoredHead, GiveUp], None]


class Anchoring:
    """Gives heads to anchors, each in a thread of its own.

    Args:
        anchors: of the compiled policy.
        of: whose ledger it is; ``ledger``: its file, which is made durable before each head.
    """

    def __init__(self, anchors: Sequence[str], of: LedgerOwner, ledger: Path) -> None:
        self._of, self._ledger = of, ledger
        self._newest: AnchoredHead | None = None
        self._work = {
            one: Background(functools.partial(self._give, _delivery(one, of)))
            for one in dict.fromkeys(anchors)
        }
        self._told: dict[str, str] = {}

    def put(self, head: LedgerHead) -> None:
        """Have a head given to all anchors."""
        if not self._work:
            return
        of = self._of
        self._newest = AnchoredHead(
            of.experiment, of.trial, of.attempt, head.seq, head.hash, files.now()
        )
        for one in self._work.values():
            one.request()

    def news(self) -> list[tuple[str, str]]:
        """Return the anchors that begin or cease to fail since the last call, and why.

        Returns:
            (anchor, what went wrong); "" where it holds the newest head again.
        """
        found = []
        for anchor, work in self._work.items():
            for error in work.results()[-1:]:
                if error != self._told.get(anchor, ""):
                    self._told[anchor] = error
                    found.append((anchor, error))
        return found

    def close(self) -> list[tuple[str, str]]:
        """Wait a while for what is under way, and give up what is not done then; returns news."""
        until = time.monotonic() + LAST_S
        late = [
            anchor
            for anchor, work in self._work.items()
            if not work.wait(max(0.0, until - time.monotonic()))
        ]
        for anchor in late:
            self._work[anchor].settled(hurry=True)
        found = dict(self.news())
        for anchor in late:
            if not self._told.get(anchor):
                found[anchor] = f"it did not take the last head within {LAST_S:g} s"
        return list(found.items())

    def _give(self, deliver: Deliver, give_up: GiveUp) -> str:
        """Deliver the newest head; returns what went wrong."""
        head = self._newest
        assert head is not None
        try:
            _durable(self._ledger)  # an anchor must hold nothing that a failure of power takes
            deliver(head, give_up)
        except (OSError, ValueError) as error:
            return (getattr(error, "strerror", None) or str(error)) + _where(error)
        return ""


def _where(error: Exception) -> str:
    name = getattr(error, "filename", None)
    return f": {name}" if name else ""


def _durable(ledger: Path) -> None:
    fd = os.open(ledger, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _delivery(anchor: str, of: LedgerOwner) -> Deliver:
    """Return what gives a head to an anchor; it raises OSError or ValueError if it cannot."""
    if anchor == anchored.SYSLOG:
        return _to_syslog
    if anchor.startswith(anchored.FILE):
        [folder] = anchored.folders([anchor])
        path = anchored.path_in(folder, of.experiment, of.trial, os.geteuid())
        return functools.partial(_to_file, path)
    return functools.partial(_to_command, shlex.split(anchor.removeprefix(anchored.COMMAND)))


def _to_file(path: Path, head: AnchoredHead, _: GiveUp) -> None:
    # by O_PATH: a user may make files in a folder that he may not list
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        around = os.fstat(folder)
        if removers := trust.removers(around):
            raise ValueError(f"{removers} may remove what {path.parent} holds: chmod +t it")
        fd = os.open(path.name, _APPENDED, _READABLE, dir_fd=folder)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(folder)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError(f"{path} is no file")
        if found.st_uid not in anchored.owners(around, os.geteuid()):
            raise ValueError(f"{path} is {trust.user(found.st_uid)}'s: remove it")
        if found.st_size == 0:  # new: the umask has no say, and its name has to last
            with contextlib.suppress(OSError):
                os.fchmod(fd, _READABLE)
                files.sync_folder(path.parent)
        files.write_all(fd, head.to_bytes() + b"\n")
        os.fsync(fd)
    finally:
        os.close(fd)


def _to_syslog(head: AnchoredHead, _: GiveUp) -> None:
    message = b"<%d>hpcdet[%d]: %s" % (_NOTICE_OF_USER, os.getpid(), head.to_bytes())
    try:
        try:
            _send(socket.SOCK_DGRAM, message)
        except OSError as error:
            if error.errno != errno.EPROTOTYPE:
                raise
            _send(socket.SOCK_STREAM, message + b"\n")
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), SYSLOG) from None


def _send(kind: socket.SocketKind, message: bytes) -> None:
    with socket.socket(socket.AF_UNIX, kind) as made:
        made.settimeout(PATIENCE_S)
        made.connect(SYSLOG)
        made.sendall(message)


def _to_command(argv: Sequence[str], head: AnchoredHead, give_up: GiveUp) -> None:
    reads, writes = os.pipe()
    try:
        os.write(writes, head.to_bytes() + b"\n")  # less than a pipe takes at once
    finally:
        os.close(writes)
    try:  # what it says on standard error is in the rank's log
        process = subprocess.Popen(
            argv, stdin=reads, stdout=subprocess.DEVNULL, start_new_session=True
        )
    finally:
        os.close(reads)
    until = time.monotonic() + PATIENCE_S
    while process.poll() is None:
        if give_up() or time.monotonic() > until:
            os.killpg(process.pid, signal.SIGKILL)  # not yet waited for: it is this one
            process.wait()
            raise ValueError(f"{argv[0]} was ended: it took longer than {PATIENCE_S:g} s")
        time.sleep(_LOOK_S)
    if process.returncode:
        raise ValueError(f"{argv[0]} ended with {process.returncode}; the rank's log has its words")
