"""The summary of one attempt's journal, made in one pass over it and in bounded memory.

Of measured values only the validations by which trials are compared are kept, as arrays: all
others are read again by what shows them.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcdet.goals import EVER
from hpcdet.read.experiment.lines import ATTEMPT, sound
from hpcdet.store.config import resolved_config
from hpcdet.store.fs import journal
from hpcdet.units import Unit

Line = journal.Line

PASSING = frozenset({"metrics", "progress", "fraction", "status", "profile"})
"""Kinds of lines that are not kept: measured values, and what only the newest line tells."""


@dataclass(frozen=True)
class JournalPosition:
    """The position up to which a journal was read: the last line's offset, number, checksum."""

    offset: int = 0
    n: int = 0
    crc: str = ""


class NewLines:
    """The lines of a journal after a position, to be iterated over once.

    If another line is found at that position, or none, the journal was replaced, and the lines
    are all there are.

    Attributes:
        same: True if the journal continues the one read before.
        position: after the lines that were iterated over to their end.
    """

    def __init__(self, path: Path, position: JournalPosition) -> None:
        self._reader = journal.Reader(path, position.offset, max(0, position.n - 1))
        self._lines = self._reader.each()
        first = next(self._lines, None) if position.n else None
        self.same = not position.n or (first is not None and first["crc"] == position.crc)
        self.position = position
        if not self.same:
            self.position = JournalPosition()
            self._reader = journal.Reader(path)
            self._lines = self._reader.each()

    def __iter__(self) -> Iterator[Line]:
        line: Line | None = None
        for line in self._lines:
            yield line
        if line is not None:
            self.position = JournalPosition(self._reader.last, self._reader.n, line["crc"])


def read_on(path: Path, position: JournalPosition) -> tuple[list[Line], JournalPosition, bool]:
    """Return the lines of ``NewLines`` as a list, the position after them, and its ``same``."""
    new = NewLines(path, position)
    return list(new), new.position, new.same


def batches(line: Line) -> int:
    """Return the batches that a trial had trained at a line of its journal; -1 if not given."""
    value = line.get("batches")
    if not isinstance(value, int):
        value = line.get("step")
    return value if isinstance(value, int) else -1


@dataclass(frozen=True)
class Compared:
    """The basis of comparisons of trials: names of metrics, and the unit of lengths."""

    names: frozenset[str]
    unit: Unit

    @classmethod
    def of(cls, resolved: resolved_config.Resolved) -> Compared:
        """Return what the trials of an experiment are compared by."""
        searcher = resolved.searcher
        unit: Unit = searcher.max_length.unit if searcher.max_length else "batches"
        return cls(frozenset(searcher.goals.lacking({}, EVER)), unit)

    def encode(self) -> str:
        """Return it as text, equal for equals."""
        return f"{self.unit} {sorted(self.names)}"


@dataclass
class Validations:
    """The values of one metric in an attempt's validations, in the order of the journal.

    Attributes:
        steps: batches of the trial at each.
        lengths: in the unit of the search; -1 if the report does not say it.
        floats: values; of others, 0.
        others: values by place that are no float: whole, not finite, or structured.
        ascending: each step is greater than the one before.
    """

    steps: array[int] = field(default_factory=lambda: array("q"))
    lengths: array[int] = field(default_factory=lambda: array("q"))
    floats: array[float] = field(default_factory=lambda: array("d"))
    others: dict[int, Any] = field(default_factory=dict)
    ascending: bool = True

    def add(self, step: int, length: int, value: Any) -> None:
        if self.steps and step <= self.steps[-1]:
            self.ascending = False
        self.steps.append(step)
        self.lengths.append(length)
        if type(value) is float:
            self.floats.append(value)
        else:
            self.others[len(self.floats)] = value
            self.floats.append(0.0)

    def value(self, place: int) -> Any:
        return self.others[place] if place in self.others else self.floats[place]


@dataclass
class AttemptJournal:
    """The summary of the journal of one attempt.

    Attributes:
        mark: up to where it was read.
        rows: how many values of metrics it has.
        reached: batches the trial had trained by it; None if it has no such line.
        heard: the time of its last line; "" if it has none.
        profiled: it has lines of the kind ``profile``.
        lines: those that are not of the kinds ``PASSING``.
        compared: by metric, the validations that trials are compared by.
    """

    mark: JournalPosition = JournalPosition()
    rows: int = 0
    reached: int | None = None
    heard: str = ""
    profiled: bool = False
    lines: list[Line] = field(default_factory=list)
    compared: dict[str, Validations] = field(default_factory=dict)

    def read(self, path: Path, by: Compared, each: Callable[[Line], None] | None = None) -> bool:
        """Read on; return True if the journal continues the one read before.

        Args:
            each: is called with each new line; if the journal was replaced, with all there are.

        Raises:
            IntegrityError: a line lacks a valid key of its kind; nothing is known then.
        """
        new = NewLines(path, self.mark)
        if not new.same:
            self._clear()
        try:
            for line in sound(new, ATTEMPT, path):
                self._take(line, by)
                if each is not None:
                    each(line)
        except BaseException:
            self._clear()
            raise
        self.mark = new.position
        return new.same

    def _clear(self) -> None:
        vars(self).update(vars(AttemptJournal()))

    def _take(self, line: Line, by: Compared) -> None:
        kind = line["kind"]
        if kind == "metrics":
            self.rows += len(line["metrics"])
            if line["group"] == "validation":
                self._compare(line, by)
        elif kind == "profile":
            self.profiled = True
        elif kind not in PASSING:
            self.lines.append(line)
        self.heard = line["t"]
        at = batches(line)
        if at > (-1 if self.reached is None else self.reached):
            self.reached = at

    def _compare(self, line: Line, by: Compared) -> None:
        step: int = line["step"]
        length = step if by.unit == "batches" else (line.get("units") or {}).get(by.unit, -1)
        metrics = line["metrics"]
        for name in by.names:
            if name in metrics:
                known = self.compared.get(name)
                if known is None:
                    known = self.compared[name] = Validations()
                known.add(step, int(length), metrics[name])

    def encode(self, **more: Any) -> bytes:
        """Return it with more JSON values in the form that ``decode`` reads."""
        head = {
            **more,
            **{**vars(self), "mark": [self.mark.offset, self.mark.n, self.mark.crc]},
            "compared": [
                [name, len(one.steps), list(one.others.items()), one.ascending]
                for name, one in self.compared.items()
            ],
        }
        arrays = (
            part.tobytes()
            for one in self.compared.values()
            for part in (one.steps, one.lengths, one.floats)
        )
        return b"\0".join((json.dumps(head).encode(), b"".join(arrays)))

    @classmethod
    def decode(cls, data: bytes) -> tuple[AttemptJournal, dict[str, Any]]:
        """Return the journal that ``encode`` has written, and what was given with it."""
        text, _, rest = data.partition(b"\0")
        head = json.loads(text)
        compared: dict[str, Validations] = {}
        begin = 0
        for name, count, others, ascending in head.pop("compared"):
            of_metric = compared[name] = Validations(others=dict(others), ascending=ascending)
            for part in (of_metric.steps, of_metric.lengths, of_metric.floats):
                part.frombytes(rest[begin : begin + 8 * count])
                begin += 8 * count
        own = {key: head.pop(key) for key in ("rows", "reached", "heard", "profiled", "lines")}
        return cls(JournalPosition(*head.pop("mark")), **own, compared=compared), head
