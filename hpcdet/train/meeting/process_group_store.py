"""The store through which process groups come about: a table of rank 0's, over the lifeline.

It takes the place of torch's ``TCPStore``, which lets in whoever finds its port. Here nobody asks
who has not proven the attempt's secret: the connections are those of the meeting (``door``).
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

from hpcdet.train.meeting.frames import Frame, FrameKind
from hpcdet.train.meeting.liveness import Lifeline

_YES, _NO = b"1", b"0"
_PATIENT = (FrameKind.GET, FrameKind.WAIT)
_STORING = (FrameKind.SET, FrameKind.ADD, FrameKind.COMPARE_SET)
Answer = Callable[[Sequence[bytes]], None]


class _Request:
    """A request to the table, and how many of its keys are known to be there."""

    def __init__(self, frame: Frame, answer: Answer) -> None:
        self.frame = frame
        self.answer = answer
        self.unseen = iter(frame.parts)


class _Table:
    """Rank 0's keys and values, and the requests that wait for keys."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._waiting: dict[bytes, list[_Request]] = {}
        """By the key that is missing."""
        self._lock = threading.Lock()

    def ask(self, frame: Frame, answer: Answer) -> None:
        """Do what is asked; answered at once, or when the keys that it waits for are there."""
        asked, answers = [_Request(frame, answer)], list[tuple[Answer, Sequence[bytes]]]()
        with self._lock:
            while asked:
                one = asked.pop()
                if (missing := self._missing(one)) is not None:
                    self._waiting.setdefault(missing, []).append(one)
                    continue
                answers.append((one.answer, self._do(one.frame)))
                if one.frame.kind in _STORING and one.frame.parts[0] in self._values:
                    asked += self._waiting.pop(one.frame.parts[0], ())
        for tell, found in answers:
            tell(found)

    def _missing(self, request: _Request) -> bytes | None:
        """A key that a request waits for; None if it waits for none."""
        if request.frame.kind not in _PATIENT:
            return None
        # from where it has waited; then all of them, as some may have been deleted
        for key in itertools.chain(request.unseen, request.frame.parts):
            if key not in self._values:
                return key
        return None

    def _do(self, request: Frame) -> Sequence[bytes]:
        values, parts = self._values, request.parts
        if request.kind is FrameKind.GET:
            return [values[key] for key in parts]
        if request.kind is FrameKind.WAIT:
            return []
        if request.kind is FrameKind.CHECK:
            return [_YES if _has(values, parts) else _NO]
        if request.kind is FrameKind.COUNT:
            return [b"%d" % len(values)]
        key = parts[0]
        if request.kind is FrameKind.DELETE:
            return [_NO if values.pop(key, None) is None else _YES]
        if request.kind is FrameKind.SET:
            values[key] = parts[1]
            return []
        if request.kind is FrameKind.ADD:
            with contextlib.suppress(ValueError):
                values[key] = b"%d" % (int(values.get(key, b"0")) + int(parts[1]))
                return [values[key]]
            return []
        expected, desired = parts[1:]
        if values.get(key, b"") == expected:
            values[key] = desired
        return [values.get(key, expected)]


class AttemptStore(Store):
    """``dist.Store`` of the ranks of an attempt; of torch's interface what its groups use.

    Values are bytes. ``get`` and ``wait`` wait for keys, by default for torch's 300 s.
    """

    def __init__(self, lifeline: Lifeline, chief: bool) -> None:
        super().__init__()
        self._lifeline = lifeline
        self._table = _Table() if chief else None
        self._numbers = itertools.count()
        self._asked: dict[int, queue.SimpleQueue[Sequence[bytes] | None]] = {}
        self._closed = False
        self._patience: timedelta = self.timeout  # type: ignore[attr-defined]
        lifeline.start(self._hear)

    def set(self, key: str, value: bytes | str) -> None:
        self._ask(FrameKind.SET, key, value)

    def get(self, key: str) -> bytes:
        return self._ask(FrameKind.GET, key, within=self._patience)[0]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return list(self._ask(FrameKind.GET, *keys, within=self._patience))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        self._ask(FrameKind.WAIT, *keys, within=self._patience if timeout is None else timeout)

    def check(self, keys: Sequence[str]) -> bool:
        return self._ask(FrameKind.CHECK, *keys)[0] == _YES

    def add(self, key: str, value: int) -> int:
        if not (found := self._ask(FrameKind.ADD, key, str(value))):
            raise dist.DistStoreError(f"the value of {key} is no number")
        return int(found[0])

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        return self._ask(FrameKind.COMPARE_SET, key, expected, desired)[0]

    def delete_key(self, key: str) -> bool:
        return self._ask(FrameKind.DELETE, key)[0] == _YES

    def num_keys(self) -> int:
        return int(self._ask(FrameKind.COUNT)[0])

    # as C++ looks for them
    deleteKey = delete_key  # noqa: N815
    getNumKeys = num_keys  # noqa: N815

    def clone(self) -> AttemptStore:
        """Itself: several threads may wait for keys at a time."""
        return self

    def _ask(
        self, kind: FrameKind, *parts: bytes | str, within: timedelta | None = None
    ) -> Sequence[bytes]:
        """The answer to a request.

        Raises:
            dist.DistStoreError: a key did not come in time.
            dist.DistNetworkError: rank 0 is gone.
        """
        given = tuple(one.encode() if isinstance(one, str) else bytes(one) for one in parts)
        number = next(self._numbers) % 2**32
        answers: queue.SimpleQueue[Sequence[bytes] | None] = queue.SimpleQueue()
        request = Frame(kind, number, given)
        if self._table is not None:
            self._table.ask(request, answers.put)
        else:
            self._asked[number] = answers
            try:
                if self._closed:
                    answers.put(None)
                else:
                    self._lifeline.send(0, request)
            except OSError:
                answers.put(None)
        try:
            answer = answers.get(timeout=None if within is None else within.total_seconds())
        except queue.Empty:
            keys = b", ".join(given).decode(errors="replace")
            assert within is not None
            raise dist.DistStoreError(
                f"nobody has set {keys} within {within.total_seconds():g} s"
            ) from None
        finally:
            self._asked.pop(number, None)
        if answer is None:
            raise dist.DistNetworkError("the connection to rank 0 is closed")
        return answer

    def _hear(self, rank: int, frame: Frame | None) -> None:
        """Called by the lifeline, with an answer of rank 0's or a request to it."""
        if self._table is not None:
            if frame is not None:
                self._table.ask(frame, self._answer(rank, frame.number))
        elif frame is None:
            self._closed = True
            for asked in list(self._asked.values()):
                asked.put(None)
        elif (waiting := self._asked.get(frame.number)) is not None:
            waiting.put(frame.parts)

    def _answer(self, rank: int, number: int) -> Answer:
        def tell(found: Sequence[bytes]) -> None:
            with contextlib.suppress(OSError):  # the lifeline notices
                self._lifeline.send(rank, Frame(FrameKind.ANSWER, number, tuple(found)))

        return tell


def _has(values: Mapping[bytes, bytes], keys: Sequence[bytes]) -> bool:
    return all(key in values for key in keys)
