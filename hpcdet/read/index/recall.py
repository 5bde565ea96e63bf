"""The memory of an index of what it has read, so that updates read new lines only.

For each journal: how far it was read, and the checksum of the last line read. If another line
is found in its place, or none, the journal was replaced and is read from its beginning. For
each trial: its records, the few lines of its journals that hold more than measured values, and
a signature of its files. While the signature stays the same, none of them is opened.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from hpcdet.read.experiment.gather import Gathered, GatheredAttempt, GatheredTrial, Line, batches
from hpcdet.read.experiment.lines import ATTEMPT, DECISION, sound
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.folder.records import Claim, Control, End, Trial, Verdict
from hpcdet.store.fs import journal
from hpcdet.store.fs.json_record import JsonRecord
from hpcdet.store.trials.standing import MANIFEST, Standing

Plain = dict[str, Any]
R = TypeVar("R", bound=JsonRecord)

_PASSING = frozenset({"metrics", "progress", "fraction", "status", "profile"})
"""Kinds of lines of which only the newest tells something beyond the table of metrics."""


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


@dataclass
class AttemptMemory:
    """One attempt: its records as plain data, and its journal's lines other than metrics.

    Attributes:
        rows: how many rows of metrics it has.
    """

    number: int
    mark: JournalPosition = JournalPosition()
    rows: int = 0
    reached: int | None = None
    heard: str = ""
    lines: list[Line] = field(default_factory=list)
    records: dict[str, Plain | None] = field(default_factory=dict)

    def take(self, line: Line, wanted: frozenset[str]) -> None:
        """Remember the parts of a line that views use."""
        self.heard = str(line["t"])
        at = batches(line)
        if at is not None:
            self.reached = at if self.reached is None else max(at, self.reached)
        if line["kind"] not in _PASSING:
            self.lines.append(line)
        elif line["kind"] == "metrics" and line["group"] == "validation":
            values = {k: v for k, v in line["metrics"].items() if k in wanted}
            if values:
                self.lines.append({**line, "metrics": values})


@dataclass
class TrialMemory:
    """One trial, with the signature of its files when it was read."""

    number: int
    signature: str
    records: dict[str, Plain | None]
    standing: Plain
    attempts: list[AttemptMemory]

    def encode(self) -> str:
        return _json(self)

    @classmethod
    def decode(cls, text: str) -> TrialMemory:
        value = json.loads(text)
        attempts = [
            AttemptMemory(**{**one, "mark": JournalPosition(**one["mark"])})
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
    def lines(self) -> list[Line]:
        return self.memory.lines

    @cached_property
    def heard(self) -> str:
        return self.memory.heard

    @cached_property
    def reached(self) -> int | None:
        return self.memory.reached


@dataclass(frozen=True)
class RecalledTrial(GatheredTrial):
    """A trial from memory, without access to its files other than checkpoints."""

    memory: TrialMemory

    @cached_property
    def record(self) -> Trial | None:
        return _decode(Trial, self.memory.records["record"])

    @cached_property
    def control(self) -> Control | None:
        return _decode(Control, self.memory.records["control"])

    @cached_property
    def standing(self) -> Standing:
        last = _decode(End, self.memory.standing["last_end"])
        return Standing(**{**self.memory.standing, "last_end": last})

    @cached_property
    def attempts(self) -> list[GatheredAttempt]:
        return [
            RecalledAttempt(self.paths.attempt(one.number), one) for one in self.memory.attempts
        ]


@dataclass(frozen=True)
class Recalled(Gathered):
    """An experiment with trials and decisions from memory, the rest from files."""

    remembered: list[GatheredTrial]
    decided: list[Line]

    @cached_property
    def trials(self) -> list[GatheredTrial]:
        return self.remembered

    @cached_property
    def decisions(self) -> list[Line]:
        return self.decided


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
    trial: TrialPaths, before: TrialMemory | None, signature: str, wanted: frozenset[str]
) -> tuple[TrialMemory, list[News]]:
    """Read the new contents of a trial.

    Args:
        signature: of its files, taken before this call.
        wanted: metrics whose validations are remembered.
    """
    gathered = GatheredTrial(trial)
    known = {one.number: one for one in before.attempts} if before else {}
    attempts, news = [], []
    for attempt in gathered.attempts:
        memory = known.get(attempt.number) or AttemptMemory(attempt.number)
        lines, mark, same = read_on(attempt.paths.journal, memory.mark)
        sound(lines, ATTEMPT, attempt.paths.journal)
        if not same:
            memory = AttemptMemory(attempt.number)
        news.append(News(attempt.number, lines, same, memory.rows))
        memory.mark = mark
        for line in lines:
            memory.take(line, wanted)
            memory.rows += len(line["metrics"]) if line["kind"] == "metrics" else 0
        memory.records = {
            "claim": _plain(attempt.claim),
            "end": _plain(attempt.end),
            "verdict": _plain(attempt.verdict),
        }
        attempts.append(memory)
    standing = gathered.standing
    records = {"record": _plain(gathered.record), "control": _plain(gathered.control)}
    facts = {**standing.__dict__, "last_end": _plain(standing.last_end)}
    return TrialMemory(trial.number, signature, records, facts, attempts), news


def signature(trial: TrialPaths) -> str:
    """Return the signature of a trial's files, which changes whenever one of them does."""
    looks = [
        _looks(trial.root),
        _names(trial.controls),
        [[a.number, _names(a.root), _look(a.journal)] for a in trial.attempts()],
        [
            [[name, *_checkpoint(place / name)] for name in _names(place)]
            for place in trial.checkpoint_places
        ],
    ]
    return hashlib.sha256(json.dumps(looks).encode()).hexdigest()


def _looks(folder: Path) -> list[Any]:
    """Return the signature of a folder's files; of subfolders only their names."""
    return [[name, *_look(folder / name)] for name in _names(folder)]


def _look(path: Path) -> list[int]:
    try:
        status = path.stat()
    except OSError:
        return []
    is_folder = stat.S_ISDIR(status.st_mode)
    return [] if is_folder else [status.st_size, status.st_mtime_ns, status.st_ino]


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _checkpoint(folder: Path) -> list[int]:
    """Return a checkpoint's signature; a committed one never changes, others may still grow."""
    committed = _look(folder / MANIFEST)
    return committed or [size for name in _names(folder) for size in _look(folder / name)[:1]]


@dataclass
class TermMemory:
    """The journal of one term: those parts of its lines that views use."""

    mark: JournalPosition = JournalPosition()
    lines: list[Line] = field(default_factory=list)

    def encode(self) -> str:
        return _json(self)

    @classmethod
    def decode(cls, text: str) -> TermMemory:
        value = json.loads(text)
        return cls(JournalPosition(**value["mark"]), value["lines"])

    def read(self, path: Path) -> bool:
        """Read new lines; return True if there are any."""
        lines, self.mark, same = read_on(path, self.mark)
        sound(lines, DECISION, path)
        if not same:
            self.lines = []
        # a searcher's event is in the trial's journal as well
        self.lines += [_bare(line) if line["kind"] == "event" else line for line in lines]
        return bool(lines) or not same


def _bare(line: Line) -> Line:
    return {key: line[key] for key in ("n", "t", "kind")}


def decision_paths(paths: ExperimentPaths) -> Iterator[Path]:
    """Return the journals of all existing terms."""
    folder = paths.decisions(0).parent
    return (folder / name for name in _names(folder) if name.endswith(".jsonl"))


def _json(memory: TrialMemory | TermMemory) -> str:
    """Encode a record, nested ones included, as JSON."""
    return json.dumps(memory, default=vars, separators=(",", ":"))


def _plain(record: JsonRecord | None) -> Plain | None:
    value: Plain | None = None if record is None else json.loads(record.encode())
    return value


def _decode(kind: type[R], value: Plain | None) -> R | None:
    return None if value is None else kind.decode(value)
