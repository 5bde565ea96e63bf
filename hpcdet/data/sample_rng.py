"""The libraries' random numbers, seeded for each sample of a data set, where it draws any.

Seeding three generators takes 10 us a sample and keeping their states 250 us a batch: much, for a
data set that draws nothing. So the first batch shows which of them it draws from, and only these
are seeded from then on. That the others were left alone is seen after each batch, by their
states; where one was drawn from after all, the batch is drawn again with all of them seeded. What
is drawn is the same in any case.
"""

from __future__ import annotations

import _random
import ctypes
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import torch

from hpcdet.data import object_graph, rng
from hpcdet.data.sample_order import subseed

T = TypeVar("T")
Plant = Callable[..., None]
"""Called before each sample with the parts of its seed; ``nothing`` need not be."""


_NUMPY: Any = np.random.mtrand._rand
_PYTHON: Any = random._inst


class Source(Protocol):
    """One generator."""

    def mark(self) -> Any:
        """Its state as it is now, for ``moved`` and ``restore``."""

    def moved(self, mark: Any) -> bool:
        """Whether anything was drawn since."""

    def restore(self, mark: Any) -> None:
        """Put it back."""

    def seed(self, number: int) -> None:
        """Begin it anew."""


class Python:
    """``random``. Asking for its state makes 625 numbers, so its words are read where they lie."""

    _LAYOUT = struct.Struct("=I624I")  # the position, then the words

    def __init__(self) -> None:
        self._words = self._found()

    def _found(self) -> Any:
        """The words, if they lie where they are expected."""
        if _random.Random.__basicsize__ < object.__basicsize__ + self._LAYOUT.size:
            return None
        words = _memory(id(_PYTHON) + object.__basicsize__, self._LAYOUT.size)
        version, expected, _ = random.getstate()
        return words if version == 3 and self._unpacked(words.raw) == expected else None

    def _unpacked(self, words: bytes) -> tuple[int, ...]:
        position, *key = self._LAYOUT.unpack(words)
        return (*key, position)

    def mark(self) -> Any:
        return random.getstate() if self._words is None else (self._words.raw, _PYTHON.gauss_next)

    def moved(self, mark: Any) -> bool:
        return bool(self.mark() != mark)

    def restore(self, mark: Any) -> None:
        if self._words is not None:
            words, gauss_next = mark
            mark = (3, self._unpacked(words), gauss_next)
        random.setstate(mark)

    def seed(self, number: int) -> None:
        random.seed(number)


class Torch:
    """torch's generator of the CPU."""

    def mark(self) -> torch.Tensor:
        return torch.default_generator.get_state()

    def moved(self, mark: torch.Tensor) -> bool:
        return not torch.equal(torch.default_generator.get_state(), mark)

    def restore(self, mark: torch.Tensor) -> None:
        torch.default_generator.set_state(mark)

    def seed(self, number: int) -> None:
        # torch.manual_seed would ask for accelerators as well: 100 times slower
        torch.default_generator.manual_seed(number % 2**63)


class Numpy:
    """``numpy.random``. Asking for its state takes 60 us, so its words are read where they lie.

    A normal number that is kept for the next call is not among them: while there is one, numpy is
    asked.
    """

    _WORDS = 625 * 4

    def __init__(self) -> None:
        bits = _NUMPY._bit_generator
        self._bits = bits
        self._memory = self._found(bits)
        self._known: tuple[bytes, Any] | None = None

    def _found(self, bits: Any) -> Any:
        """Its words, if they lie where they are expected, the position behind them."""
        if not isinstance(bits, np.random.MT19937):
            return None
        state = bits.state["state"]
        expected = state["key"].astype(np.uint32).tobytes()
        expected += int(state["pos"]).to_bytes(4, "little")
        words = _memory(int(bits.ctypes.state_address), self._WORDS)
        return words if words.raw == expected else None

    def _words(self) -> bytes:
        if self._memory is not None and _NUMPY._bit_generator is self._bits:
            return self._memory.raw  # type: ignore[no-any-return]
        return b""

    def mark(self) -> Any:
        words = self._words()
        if not words or self._known is None or self._known[0] != words or self._known[1][3]:
            self._known = words, np.random.get_state(legacy=True)
        return self._known

    def moved(self, mark: Any) -> bool:
        words, state = mark
        if words and not state[3]:
            return bool(self._words() != words)
        now: Any = np.random.get_state(legacy=True)
        return bool(now[2:] != state[2:] or not np.array_equal(now[1], state[1]))

    def restore(self, mark: Any) -> None:
        np.random.set_state(mark[1])

    def seed(self, number: int) -> None:
        np.random.seed(number % 2**32)


class Own:
    """Generators of a data set's own, in its attributes, its transforms and the like."""

    def __init__(self, generators: Sequence[rng.Generator] = ()) -> None:
        self._generators = list(generators)

    @classmethod
    def of(cls, *roots: Any) -> Own:
        """Those that can be reached from some objects."""
        found = object_graph.walk({str(number): root for number, root in enumerate(roots)})
        return cls([one for _, one in found if rng.is_own(one)])

    def __bool__(self) -> bool:
        return bool(self._generators)

    def mark(self) -> list[Any]:
        """Their states, for ``restore``."""
        return list(map(rng.state_of, self._generators))

    def restore(self, mark: Sequence[Any]) -> None:
        for one, before in zip(self._generators, mark, strict=True):
            rng.restore_one(one, before)

    def seed(self, number: int) -> None:
        for place, one in enumerate(self._generators):
            rng.reseed(one, number + place + 1)


class Draws:
    """Draws the batches of one data set, in one process.

    Args:
        own: generators of the data set's own, which are seeded for every sample.
    """

    def __init__(self, own: Own | None = None) -> None:
        self._sources: list[Source] = [Python(), Numpy(), Torch()]
        self._own = own or Own()
        self._used: list[Source] = []
        self._known = self._leaves_all = False
        self._planted: list[tuple[Source, Any]] = []

    def batch(self, fetch: Callable[[Plant], T], *, keep: bool) -> T:
        """Return the result of ``fetch``, which calls its argument before each sample.

        Args:
            keep: leave the generators as they were: they are the training process's own.
        """
        before = [(source, source.mark()) for source in self._sources]
        own = self._own.mark()
        quiet = False
        try:
            if self._known:
                drawn = fetch(nothing if self._leaves_all else self._plant)
                quiet = not [s for s, m in before if s not in self._used and s.moved(m)]
                if quiet:
                    return drawn
                self._put_back(before)
                self._own.restore(own)
            self._planted = []
            drawn = fetch(self._plant_all)
            self._look()
            self._known, self._leaves_all = True, not (self._used or self._own)
            return drawn
        finally:
            if keep and not (quiet and self._leaves_all):
                self._put_back([(s, m) for s, m in before if not quiet or s in self._used])
                self._own.restore(own)

    def _plant(self, *parts: int | str) -> None:
        number = subseed(*parts)
        for source in self._used:
            source.seed(number)
        self._own.seed(number)

    def _plant_all(self, *parts: int | str) -> None:
        self._look()
        number = subseed(*parts)
        for source in self._sources:
            source.seed(number)
        self._own.seed(number)
        self._planted = [(source, source.mark()) for source in self._sources]

    def _look(self) -> None:
        """Which sources have been drawn from since they were seeded."""
        for source, mark in self._planted:
            if source not in self._used and source.moved(mark):
                self._used.append(source)

    @staticmethod
    def _put_back(marks: Sequence[tuple[Source, Any]]) -> None:
        for source, mark in marks:
            source.restore(mark)


def _memory(address: int, size: int) -> Any:
    """Memory of this process, as it is whenever ``raw`` is asked for."""
    return (ctypes.c_char * size).from_address(address)


def nothing(*_parts: int | str) -> None:
    """Seeds none, where none is drawn from."""
