"""The lease on deciding for an experiment: numbered terms that are taken, never taken over.

A term is a file ``terms/000007.json`` made by exclusive creation: of any number of processes
that reach for a number, one gets it, whatever their caches show them. Its holder replaces
``terms/000007.beat`` while it lives. A term is over when its beat says ``released``, or when
the beat has not changed for ``ttl_s`` on the observer's clock; then the next number may be taken.
No clock is compared with another one, nothing is renamed. The files of old terms that are removed
(``prune``) fence no holder.

A holder that was suspended finds itself fenced in two ways: a higher term is there, or its own
clock says that it has not beaten for so long that there might be one that it cannot see yet.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files, packed
from hpcdet.store.fs.json_record import JsonRecord

KEEP = 0.75
"""Part of the time to live for which a holder trusts its last beat."""
BEAT = 0.2
"""Part of the time to live after which a holder that is asked beats again."""
BEHIND = 100
"""So many terms stay in any case."""
OLD_S = 24 * 3600.0
"""So long a term stays in any case: no cache of a network file system shows a listing as old."""
AT_ONCE = 200
"""Terms that are removed in one call at most."""
PASSING = frozenset({"command", "once", "script", "sentinel", "submit", "wake"})
"""Kinds of holders that make a turn or a few and leave: they may not look again."""
_held: dict[Path, int] = {}
"""The terms of this process, by the folder of the experiment."""


@dataclass(frozen=True)
class Term(JsonRecord):
    """The process that took a term, in ``terms/N.json``. ``kind``: daemon, worker, wait, …."""

    number: int
    kind: str
    host: str
    pid: int
    at: str = ""


@dataclass(frozen=True)
class Beat(JsonRecord):
    """``terms/N.beat``. ``nonce`` differs in every beat; the rest is as in ``Lease``."""

    nonce: str
    released: bool = False
    blind: str = ""
    at: str = ""
    waiting: int = 0
    waits: list[dict[str, Any]] = field(default_factory=list)

    def reasons(self) -> list[dict[str, Any]]:
        """Return the valid entries of ``waits``, as the file may come from any writer."""
        return [one for one in self.waits if _is_reason(one)]


_REASON = {"reason": str, "kind": str, "tasks": int, "since": str, "long": bool}


def _is_reason(one: Mapping[str, Any]) -> bool:
    try:
        timed = datetime.fromisoformat(one["since"]).tzinfo is not None
    except (KeyError, TypeError, ValueError):
        return False
    return timed and all(type(one.get(key)) is kind for key, kind in _REASON.items())


class Lease:
    """The lease of one experiment as one process holds or watches it.

    Keep the object and call ``try_acquire`` repeatedly: expiry is judged by the changes that this
    object has seen.

    Attributes:
        term: number of the term held; 0 while none is.
        after: a free number above this one is taken; for a folder with files of other terms.
        blind: why the holder cannot ask the scheduler, "" if it can; told with every beat.
        waiting: tasks that the scheduler keeps in its queue, as last seen; told likewise.
        waits: why they wait: the ``reason``, its ``kind`` (``schedulers.common.base.Wait``),
            how many ``tasks``, ``since`` when, and whether that is too ``long``; told likewise.
    """

    def __init__(
        self,
        paths: ExperimentPaths,
        kind: str,
        ttl_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.paths = paths
        self.kind = kind
        self.ttl_s = ttl_s
        self.term = 0
        self.after = 0
        self.blind = ""
        self.waiting = 0
        self.waits: list[dict[str, Any]] = []
        self._clock = clock
        self._beaten = 0.0
        self._seen: tuple[int, str] = (0, "")
        self._since = clock()

    def try_acquire(self) -> bool:
        """Keep the lease or take it if it is free; True if it is held. Never waits."""
        if self.term and self.verify():
            return True
        highest = max(packed.numbers(self.paths.terms, ".json"), default=0)
        if highest and not self._over(highest):
            return False
        number = max(highest, self.after) + 1
        started = self._clock()
        term = Term(number, self.kind, socket.gethostname(), os.getpid(), files.now())
        if not term.write_once(self.paths.term(number)):
            return False
        if max(packed.numbers(self.paths.terms, ".json"), default=0) > number:
            return False  # the first look was at an old listing, of before it was removed
        self.term, self._beaten = number, started
        _held[self.paths.root] = number
        self._write_beat()
        return True

    def beat(self) -> None:
        """Write a beat: the holder lives. Call at least every fifth of the time to live."""
        if self.term and self.verify():
            self._write_beat()

    @contextlib.contextmanager
    def kept(self, most_s: float) -> Iterator[None]:
        """Beat by a thread while this one does another's work, but not for longer than ``most_s``.

        What takes longer hangs, and others have to be able to take over.
        """
        over = threading.Event()
        keeper = threading.Thread(target=self._keep, args=(over, most_s), daemon=True)
        keeper.start()
        try:
            yield
        finally:
            over.set()
            keeper.join()

    def _keep(self, over: threading.Event, most_s: float) -> None:
        until = time.monotonic() + most_s
        while not over.wait(self.ttl_s * BEAT) and time.monotonic() < until:
            with contextlib.suppress(OSError):  # tried again; at worst the term ends
                self.beat()

    def verify(self) -> bool:
        """True if the term is still held; check it right before every side effect.

        Once it is not, ``term`` is 0 and no decision made under it may be acted upon.
        """
        if not self.term:
            return False
        since = self._clock() - self._beaten
        if since > self.ttl_s * KEEP:
            # another process may hold a higher term by now that is not visible here yet
            self.release()
            return False
        if self._fenced():
            self.term = 0
            return False
        if since > self.ttl_s * BEAT:
            self._write_beat()
        return True

    def release(self) -> None:
        """Release the lease, so that the next holder can take it at once."""
        if self.term:
            try:
                self._write_beat(released=True)
            finally:
                if _held.get(self.paths.root) == self.term:
                    del _held[self.paths.root]
                self.term = 0

    def _fenced(self) -> bool:
        highest = max(packed.numbers(self.paths.terms, ".json"), default=0)
        if highest > self.term:
            return True
        # opening asks the server, where a listing may come from a cache
        return Term.read(self.paths.term(self.term + 1)) is not None

    def _over(self, number: int) -> bool:
        beat = Beat.read(beat_path(self.paths, number))
        if beat is not None and beat.released:
            return True
        seen = (number, beat.nonce if beat else "")
        if seen != self._seen:
            self._seen, self._since = seen, self._clock()
            return False
        return self._clock() - self._since >= self.ttl_s

    def _write_beat(self, *, released: bool = False) -> None:
        started = self._clock()
        nonce, now = secrets.token_hex(8), files.now()
        beat = Beat(nonce, released, self.blind, now, self.waiting, self.waits)
        files.replace(beat_path(self.paths, self.term), beat.encode())
        self._beaten = started


def beat_path(paths: ExperimentPaths, number: int) -> Path:
    """Return the path ``terms/N.beat``, which the holder of term N replaces."""
    return paths.term(number).with_suffix(".beat")


def prune(paths: ExperimentPaths, newest: int) -> int:
    """Remove the files of terms that are no longer needed; return the number of terms.

    A term's file fences the holder of the one before, unless that has released it. Only the
    holder of the newest term calls.
    """
    names = packed.names(paths.terms)
    there = {int(stem) for name in names if (stem := name.partition(".")[0]).isdecimal()}
    before = beat_path(paths, newest).stat().st_mtime - OLD_S
    gone, fenced = 0, 0
    for number in sorted(each for each in there if each < newest - BEHIND):
        path = beat_path(paths, number)
        beat = Beat.read(path)
        if beat is None or not beat.released:
            fenced = number + 1
            continue
        if path.stat().st_mtime >= before or gone == AT_ONCE:
            break  # those that follow are younger
        if number != fenced:
            paths.term(number).unlink(missing_ok=True)
            path.unlink()
            gone += 1
    return gone


def before(paths: ExperimentPaths, term: int) -> Beat | None:
    """Return the last beat of the term before ``term``, if there is one."""
    former = [number for number in packed.numbers(paths.terms, ".json") if number < term]
    return Beat.read(beat_path(paths, max(former))) if former else None


def last(paths: ExperimentPaths) -> tuple[Term, Beat | None] | None:
    """Return the newest term and its last beat, for display; None before the first."""
    for number in reversed(packed.numbers(paths.terms, ".json")):
        term = Term.read(paths.term(number))
        if term is not None:
            return term, Beat.read(beat_path(paths, number))
    return None


def attended(paths: ExperimentPaths, seen: tuple[Term, Beat | None] | None) -> bool:
    """True if another holder lives that sees what was written before ``last`` returned ``seen``.

    It makes further turns, and is one of this process or has beaten since; or its term is newer.
    """
    now = last(paths)
    if now is None:
        return False
    term, beat = now
    if beat is not None and beat.released:
        return False
    passes = term.kind in PASSING
    if _held.get(paths.root) == term.number and not passes:
        return True
    mine = (term.host, term.pid) == (socket.gethostname(), os.getpid())
    newer = seen is None or term.number > seen[0].number
    return not mine and now != seen and (newer or not passes)
