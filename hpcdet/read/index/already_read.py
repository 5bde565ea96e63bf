"""The memory of an index of what it has read, so that updates read new lines only.

For each trial: its records, its journals (``read.experiment.journals``), and how its files looked.
While they look the same (``store.fs.freshness``), none of them is opened.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from hpcdet.read.experiment.gather import Gathered, GatheredAttempt, GatheredTrial
from hpcdet.read.experiment.journals import AttemptJournal, Compared, Line
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Claim, Control, End, Trial, Verdict
from hpcdet.store.fs import packed
from hpcdet.store.fs.freshness import Seen
from hpcdet.store.fs.json_record import JsonRecord
from hpcdet.store.trials.standing import Standing

Plain = dict[str, Any]
R = TypeVar("R", bound=JsonRecord)


@dataclass
class AttemptMemory:
    """One attempt: its records as plain data, and its journal."""

    number: int
    journal: AttemptJournal
    records: dict[str, Plain | None]


@dataclass
class TrialMemory:
    """One trial: its records, standing and attempts."""

    records: dict[str, Plain | None]
    standing: Plain
    attempts: list[AttemptMemory]

    @classmethod
    def decode(cls, text: str) -> TrialMemory:
        value = json.loads(text)
        attempts = [
            AttemptMemory(**{**one, "journal": AttemptJournal.decode(one["journal"])})
            for one in value["attempts"]
        ]
        return cls(**{**value, "attempts": attempts})


@dataclass(frozen=True)
class RecalledAttempt(GatheredAttempt):
    """An attempt from memory, without access to its files."""

    memory: AttemptMemory

    @cached_property
    def claim(self) -> Claim | None:
        return _decode(Claim, self.memory.records["claim"])

    @cached_property
    def end(self) -> End | None:
        return _decode(End, self.memory.records["end"])

    @cached_property
    def verdict(self) -> Verdict | None:
        return _decode(Verdict, self.memory.records["verdict"])

    @cached_property
    def journal(self) -> AttemptJournal:
        return self.memory.journal


@dataclass(frozen=True)
class RecalledTrial(GatheredTrial):
    """A trial from memory, without access to its files other than checkpoints."""

    memory: TrialMemory

    @cached_property
    def record(self) -> Trial | None:
        return _decode(Trial, self.memory.records["record"])

    @cached_property
    def controls(self) -> list[Control]:
        control = _decode(Control, self.memory.records["control"])
        return [] if control is None else [control]

    @cached_property
    def standing(self) -> Standing:
        last = _decode(End, self.memory.standing["last_end"])
        return Standing(**{**self.memory.standing, "last_end": last})

    @cached_property
    def attempts(self) -> Sequence[GatheredAttempt]:
        return [
            RecalledAttempt(self.paths.attempt(one.number), self.journals, one)
            for one in self.memory.attempts
        ]


@dataclass(frozen=True)
class Recalled(Gathered):
    """An experiment with trials and decisions from memory, the rest from files."""

    remembered: Sequence[GatheredTrial] = ()
    decided: Sequence[Line] = ()

    @cached_property
    def trials(self) -> list[GatheredTrial]:
        return list(self.remembered)

    @cached_property
    def decisions(self) -> list[Line]:
        return list(self.decided)


@dataclass(frozen=True)
class News:
    """The new lines of one attempt.

    Attributes:
        same: True if its journal continues the one read before; else all its rows are void.
        before: the number of rows of metrics it had before.
    """

    attempt: int
    lines: list[Line]
    same: bool
    before: int


def read_trial(
    read: GatheredTrial, before: TrialMemory | None, by: Compared
) -> tuple[TrialMemory, list[News]]:
    """Return the memory of a trial's present files, and what is new in its journals."""
    known = {one.number: one.journal for one in before.attempts} if before else {}
    attempts, news = [], []
    for attempt in read.attempts:
        journal = known.get(attempt.number) or AttemptJournal()
        rows = journal.rows
        lines, same = journal.read(attempt.paths.journal, by)
        news.append(News(attempt.number, lines, same, rows))
        records = {
            "claim": _plain(attempt.claim),
            "end": _plain(attempt.end),
            "verdict": _plain(attempt.verdict),
        }
        attempts.append(AttemptMemory(attempt.number, journal, records))
    records = {"record": _plain(read.record), "control": _plain(read.control)}
    facts = {**vars(read.standing), "last_end": _plain(read.standing.last_end)}
    return TrialMemory(records, facts, attempts), news


def decision_paths(paths: ExperimentPaths) -> Iterator[Path]:
    """Return the journals of all existing terms."""
    folder = paths.decisions(0).parent
    return (folder / name for name in sorted(packed.names(folder)) if name.endswith(".jsonl"))


def decode_seen(text: str) -> Seen:
    """Return how the files of a trial looked, as ``encode`` has written it."""
    value = json.loads(text)
    return Seen(**{**value, "looks": [tuple(look) for look in value["looks"]]})


def _plain(record: JsonRecord | None) -> Plain | None:
    value: Plain | None = None if record is None else json.loads(record.encode())
    return value


def _decode(kind: type[R], value: Plain | None) -> R | None:
    return None if value is None else kind.decode(value)
