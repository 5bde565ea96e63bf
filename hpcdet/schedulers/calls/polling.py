"""One question to the scheduler, shared by every process of the user on every node.

The answer lies in a file of the user's cache folder. Whoever finds it too old asks again, while
the others go on with what there is. Twenty workers so cause one query a minute, not twenty.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpcdet.errors import IntegrityError, Unavailable
from hpcdet.schedulers.common import questions
from hpcdet.store.folder import private_folders
from hpcdet.store.fs import files

SLOWEST_S = 600
_SLOWER = 1.5
_MANY = 500
_FIRST_S = 150
_STEP_S = 0.05
LOCK_S = 10.0
"""Who holds the lock of a small file for longer was stopped."""
_COST = 10
"""An answer that took t seconds is not asked for again within ten times t."""


def wanted_folder() -> Path:
    """Return where answers lie if this host can write there."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("HPCDET_CACHE") or base / "hpcdet") / "polling"


def cache_folder() -> Path:
    """Where answers lie: ``$HPCDET_CACHE``, else the user's cache on the shared home folder.

    A compute node whose home cannot be written has one of its own in its temporary folder.

    Raises:
        Unavailable: the folder belongs to another user or others may write it.
    """
    folder = wanted_folder()
    try:
        files.make_folder(folder)
        usable = os.access(folder, os.W_OK)
    except OSError:
        usable = False
    if not usable:
        folder = private_folders.temporary()
    private_folders.refuse_foreign(folder, "remove it, or let HPCDET_CACHE name another folder")
    return folder


@dataclass(frozen=True)
class QueryAnswer:
    """The scheduler's answer.

    Attributes:
        at: when it was asked, epoch seconds of the asker's clock.
        wanted: what the askers wanted to know about: it was known to them when they asked.
        wait_s: how long it is good for.
        least_s: how long it is good for even where something must have changed since.
    """

    text: str
    at: float
    wanted: frozenset[str] = frozenset()
    wait_s: float = 0
    error: str = ""
    least_s: float = 0

    def encode(self) -> bytes:
        return json.dumps({**self.__dict__, "wanted": sorted(self.wanted)}).encode()

    @staticmethod
    def decode(value: Any) -> QueryAnswer | None:
        if not isinstance(value, dict):
            return None
        try:
            return QueryAnswer(**{**value, "wanted": frozenset(value["wanted"])})
        except (TypeError, KeyError):
            return None  # of another version: ask anew


@dataclass
class SharedQuery:
    """A question that is asked at most once in ``min_s``, by all processes together.

    Attributes:
        name: names the file; one per cluster and question.
        min_s: least time between two questions. It grows to ``max_s`` while nothing changes, is
            back at the least when something does, and grows with the time that an answer takes.
        ask: puts the question about some things; raises Unavailable.
        max_s: None: ten times ``min_s``, at most 600 s.
        gist: what of an answer has to change for something to have changed.
    """

    name: str
    min_s: float
    ask: Callable[[frozenset[str]], str]
    clock: Callable[[], float] = field(default=time.time)
    max_s: float | None = None
    gist: Callable[[str], object] = str
    _unwritten: QueryAnswer | None = field(default=None, init=False)

    def get(self, wanted: frozenset[str]) -> QueryAnswer:
        """The present answer, asked for now if it is too old.

        ``QueryAnswer.wanted`` tells whether it was asked with all of ``wanted`` in mind.

        Where the folder is full, this process goes on with an answer of its own. Where it may not
        ask, it takes what others have been told as long as that is good.

        Raises:
            Unavailable: the scheduler does not answer, or lately did not.
        """
        folder = cache_folder()
        path = folder / f"{self.name}.json"
        answer = self._read(path)
        if not self._good(answer, wanted):
            questions.refuse(self.name)  # what others have been told is kept for them
            # without any answer yet there is nothing to go on with; with one, an old one will do
            wait_s = _FIRST_S if answer is None else 0
            with lock(folder / f"{self.name}.lock", wait_s) as mine:
                answer = self._read(path)
                if mine and not self._good(answer, wanted):
                    answer = self._ask(answer, wanted)
                    self._write(path, answer)
        if answer is None:
            raise Unavailable("another process is asking the scheduler", where=self.name)
        if answer.error:
            raise Unavailable(answer.error, where=self.name)
        return answer

    def expect_change(self) -> None:
        """Something was just done that changes the answer: it is good for the least time only."""
        folder = cache_folder()
        path = folder / f"{self.name}.json"
        with lock(folder / f"{self.name}.lock", 0) as mine:
            answer = self._read(path)
            if mine and answer is not None and not answer.error:
                wait = max(self.min_s, answer.least_s)
                if wait < answer.wait_s:
                    self._write(path, replace(answer, wait_s=wait))

    def _read(self, path: Path) -> QueryAnswer | None:
        try:
            answer = QueryAnswer.decode(files.read_json(path, large=True))
        except IntegrityError:  # damaged: it is asked for and written anew
            answer = None
        own = self._unwritten
        return own if own is not None and (answer is None or answer.at <= own.at) else answer

    def _write(self, path: Path, answer: QueryAnswer) -> None:
        self._unwritten = answer
        with contextlib.suppress(OSError):
            files.replace(path, answer.encode())
            self._unwritten = None

    def _good(self, answer: QueryAnswer | None, wanted: frozenset[str]) -> bool:
        if answer is None:
            return False
        age = self.clock() - answer.at
        if age < -SLOWEST_S:
            return False  # a clock was set back
        known = wanted <= answer.wanted
        return age < (answer.wait_s if known else max(self.min_s, answer.least_s))

    def _ask(self, last: QueryAnswer | None, wanted: frozenset[str]) -> QueryAnswer:
        begun, text, error = self.clock(), "", ""
        if last is not None and len(last.wanted) < _MANY:
            wanted |= last.wanted  # what other processes look for is answered along
        try:
            text = self.ask(wanted)
        except Unavailable as failure:
            error = failure.what
        least = max(self.min_s, _COST * (self.clock() - begun))
        wait = least
        if last is not None and (error or self.gist(text) == self.gist(last.text)):
            wait = max(least, last.wait_s * _SLOWER)
        most = min(SLOWEST_S, 10 * self.min_s) if self.max_s is None else self.max_s
        return QueryAnswer(text, begun, wanted, min(wait, max(least, most)), error, least)


@contextlib.contextmanager
def lock(path: Path, wait_s: float) -> Iterator[bool]:
    """Hold the lock of a file in ``cache_folder``; False if another still has it after ``wait_s``.

    File systems without locks, or without room for the file, give it to everybody.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, files.FILE_MODE)
    except OSError:
        yield True
        return
    last = time.monotonic() + wait_s
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= last:
                    yield False
                    return
                time.sleep(_STEP_S)
                continue
            except OSError:
                pass
            yield True
            return
    finally:
        os.close(fd)
