"""The journals of an experiment, each read on from where the last look stopped, in little memory.

For each journal: how far it was read, and the checksum of the last line read. If another line is
found in its place, or none, the journal was replaced and is read from its beginning. Of measured
values only the validations by which trials are compared are kept, and of the searcher's reports
those on which a trial had to leave: all others are read again by what shows them.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from hpcdet.goals import EVER
from hpcdet.read.experiment.lines import ATTEMPT, DECISION, sound
from hpcdet.store.config import resolved_config
from hpcdet.store.decisions import chain
from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.layout import ExperimentPaths
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


def read_on(path: Path, mark: JournalPosition) -> tuple[list[Line], JournalPosition, bool]:
    """Return the lines after a mark, the mark after these, and True if the journal is the same.

    If it is not, the lines are all there are.
    """
    reader = journal.Reader(path, mark.offset, max(0, mark.n - 1))
    lines = reader.read()
    same = not mark.n or bool(lines and lines[0]["crc"] == mark.crc)
    if same:
        lines = lines[1:] if mark.n else lines
    else:
        reader = journal.Reader(path)
        lines = reader.read()
    if lines:
        mark = JournalPosition(reader.last, reader.n, lines[-1]["crc"])
    return lines, mark if same or lines else JournalPosition(), same


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


@dataclass
class Validations:
    """The values of one metric in an attempt's validations, in the order of the journal.

    Attributes:
        steps: batches of the trial at each.
        lengths: in the unit of the search; -1 if the report does not say it.
    """

    steps: array[int] = field(default_factory=lambda: array("q"))
    lengths: array[int] = field(default_factory=lambda: array("q"))
    values: list[Any] = field(default_factory=list)


@dataclass
class AttemptJournal:
    """The journal of one attempt.

    Attributes:
        mark: up to where it was read.
        rows: how many values of metrics it has.
        reached: batches the trial had trained by it; None if it has no such line.
        heard: the time of its last line; "" if it has none.
        lines: those that are not of the kinds ``PASSING``.
        compared: by metric, the validations that trials are compared by.
    """

    mark: JournalPosition = JournalPosition()
    rows: int = 0
    reached: int | None = None
    heard: str = ""
    lines: list[Line] = field(default_factory=list)
    compared: dict[str, Validations] = field(default_factory=dict)

    def read(self, path: Path, by: Compared) -> tuple[list[Line], bool]:
        """Read on; return the new lines, and True if the journal continues the one read before.

        Raises:
            IntegrityError: a line lacks a valid key of its kind.
        """
        lines, mark, same = read_on(path, self.mark)
        sound(lines, ATTEMPT, path)
        if not same:
            self.rows, self.reached, self.heard, self.lines, self.compared = 0, None, "", [], {}
        self.mark = mark
        for line in lines:
            if line["kind"] == "metrics":
                self.rows += len(line["metrics"])
                if line["group"] == "validation":
                    self._compare(line, by)
            elif line["kind"] not in PASSING:
                self.lines.append(line)
        if lines:
            self.heard = str(lines[-1]["t"])
            before = -1 if self.reached is None else self.reached
            reached = max(before, *(batches(line) for line in lines))
            self.reached = None if reached < 0 else reached
        return lines, same

    def _compare(self, line: Line, by: Compared) -> None:
        step: int = line["step"]
        length = step if by.unit == "batches" else (line.get("units") or {}).get(by.unit, -1)
        for name in by.names.intersection(line["metrics"]):
            known = self.compared.get(name)
            if known is None:
                known = self.compared[name] = Validations()
            known.steps.append(step)
            known.lengths.append(int(length))
            known.values.append(line["metrics"][name])

    @classmethod
    def decode(cls, value: Mapping[str, Any]) -> AttemptJournal:
        """Return the journal that ``encode`` has written."""
        compared = {
            name: Validations(array("q", one["steps"]), array("q", one["lengths"]), one["values"])
            for name, one in value["compared"].items()
        }
        mark = JournalPosition(**value["mark"])
        return cls(**{**value, "mark": mark, "compared": compared})


@dataclass
class TermJournal:
    """The decisions of one term.

    Attributes:
        lines: all but the searcher's reports on which no trial had to leave.
        report: the last report, of which that is not known yet.
    """

    mark: JournalPosition = JournalPosition()
    lines: list[Line] = field(default_factory=list)
    report: Line | None = None

    def read(self, path: Path) -> bool:
        """Read on; return True if anything is new. Raises IntegrityError as ``AttemptJournal``."""
        lines, mark, same = read_on(path, self.mark)
        sound(lines, DECISION, path)
        self.mark = mark
        if not same:
            self.lines, self.report = [], None
        for line in lines:
            self._take(line)
        return bool(lines) or not same

    @property
    def all(self) -> list[Line]:
        """The lines, and the last report: what it led to may be in the next term."""
        return [*self.lines, *([self.report] if self.report is not None else [])]

    def _take(self, line: Line) -> None:
        if line["kind"] == "event" and line["event"].get("kind") == "report":
            self.report = line
            return
        leaves = line["kind"] == "action" and line["action"].get("kind") in ("pause", "stop")
        if leaves and self.report is not None:
            self.lines.append(self.report)
        if leaves or line["kind"] == "event":
            self.report = None
        self.lines.append(line)

    @classmethod
    def decode(cls, value: Mapping[str, Any]) -> TermJournal:
        """Return the journal that ``encode`` has written."""
        return cls(**{**value, "mark": JournalPosition(**value["mark"])})


def encode(memory: object) -> str:
    """Return what is known of a journal, or holds such knowledge, as JSON."""
    return json.dumps(memory, default=_plain, separators=(",", ":"))


def _plain(part: Any) -> Any:
    return part.tolist() if isinstance(part, array) else vars(part)


class Journals:
    """The journals of one experiment as one process has read them."""

    def __init__(self, paths: ExperimentPaths) -> None:
        self._paths = paths
        self._attempts: dict[tuple[int, int], AttemptJournal] = {}
        self._terms: dict[Path, TermJournal] = {}

    @cached_property
    def _compared(self) -> Compared:
        return Compared.of(resolved_config.load(self._paths.config))

    def attempt(self, paths: AttemptPaths) -> AttemptJournal:
        """Return an attempt's journal as it is now."""
        known = self._attempts.setdefault((paths.trial, paths.number), AttemptJournal())
        known.read(paths.journal, self._compared)
        return known

    def decisions(self) -> list[Line]:
        """Return the decisions of all terms, without most reports (``TermJournal``)."""
        return chain.read(self._paths, self._term)

    def _term(self, path: Path) -> list[Line]:
        known = self._terms.setdefault(path, TermJournal())
        known.read(path)
        return known.all
