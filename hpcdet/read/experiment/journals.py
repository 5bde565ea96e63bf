"""The journals of an experiment, each read on from where the last look stopped, in little memory.

For each journal: how far it was read, and the checksum of the last line read. If another line is
found in its place, or none, the journal was replaced and is read from its beginning. Of attempts
there is a summary (``summary``), and of the searcher's reports those on which a trial had to
leave. Both are kept for later processes, too (``kept``).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from hpcdet.read.experiment.kept import Kept, rests, sight
from hpcdet.read.experiment.lines import DECISION, sound
from hpcdet.read.experiment.summary import (
    AttemptJournal,
    Compared,
    JournalPosition,
    Line,
    NewLines,
    read_on,
)
from hpcdet.store.config import resolved_config
from hpcdet.store.decisions import chain
from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.layout import ExperimentPaths


@dataclass
class TermJournal:
    """The decisions of one term.

    Attributes:
        lines: all but the searcher's reports on which no trial had to leave.
        report: the last report, of which that is not known yet.
    """

    mark: JournalPosition = field(default_factory=JournalPosition)
    lines: list[Line] = field(default_factory=list)
    report: Line | None = None

    def read(self, path: Path) -> bool:
        """Read on; return True if anything is new. Raises IntegrityError as ``AttemptJournal``."""
        before, new = self.mark, NewLines(path, self.mark)
        lines = list(sound(new, DECISION, path))
        if not new.same:
            self.lines, self.report = [], None
        self.mark = new.position
        for line in lines:
            self._take(line)
        return self.mark != before

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

    def encode(self) -> bytes:
        """Return it in the form that ``decode`` reads."""
        mark = [self.mark.offset, self.mark.n, self.mark.crc]
        return json.dumps([mark, self.lines, self.report]).encode()

    @classmethod
    def decode(cls, data: bytes) -> TermJournal:
        """Return the journal that ``encode`` has written."""
        mark, lines, report = json.loads(data)
        return cls(JournalPosition(*mark), lines, report)


class Journals:
    """The journals of one experiment as this process has read them, and others before it.

    Args:
        resolved: returns the config; by default it is read from its file.
    """

    def __init__(
        self,
        paths: ExperimentPaths,
        kept: Kept | None = None,
        resolved: Callable[[], resolved_config.Resolved] | None = None,
    ) -> None:
        self._paths = paths
        self._resolved = resolved or (lambda: resolved_config.load(paths.config))
        self._kept = kept if kept is not None else Kept(paths)
        self._attempts: dict[tuple[int, int], AttemptJournal] = {}
        self._terms: dict[Path, TermJournal] = {}

    @cached_property
    def compared(self) -> Compared:
        return Compared.of(self._resolved())

    def attempt(self, paths: AttemptPaths) -> AttemptJournal:
        """Return the summary of an attempt's journal as it is now."""
        self._read(paths)
        return self._attempts[paths.trial, paths.number]

    def since(
        self, paths: AttemptPaths, after: JournalPosition
    ) -> tuple[list[Line], JournalPosition, bool]:
        """Return what ``read_on`` returns; the same pass makes the summary, where it can."""
        key, lines = (paths.trial, paths.number), list[Line]()
        if key not in self._attempts and self._found(paths)[0].mark == after:
            same = self._read(paths, lines.append)
            return lines, self._attempts[key].mark, same
        return read_on(paths.journal, after)

    def _read(self, paths: AttemptPaths, each: Callable[[Line], None] | None = None) -> bool:
        """Bring a summary up to date; return True if its journal continues the one it was of."""
        key = (paths.trial, paths.number)
        if (known := self._attempts.get(key)) is not None:
            return known.read(paths.journal, self.compared, each)
        seen, now = sight(paths.journal), self._kept.clock()
        known, about = self._found(paths)
        if about.get("seen", seen)[2::3] != seen[2::3]:  # another file, or it was packed
            known, about = AttemptJournal(), {}
        looks_same, before, same = about.get("seen") == seen, known.mark, True
        if not looks_same or not about["rests"]:
            same = known.read(paths.journal, self.compared, each)
            resting = rests(seen, now)
            if known.mark != before or not looks_same or resting:
                by = self.compared.encode()
                self._kept.put(_part(paths), known.encode(by=by, seen=seen, rests=resting))
        self._attempts[key] = known
        return same

    def _found(self, paths: AttemptPaths) -> tuple[AttemptJournal, dict[str, Any]]:
        """Return the summary that is kept, or an empty one, and what was kept about it."""
        found = self._kept.decoded(_part(paths), AttemptJournal.decode)
        if found is None or found[1].get("by") != self.compared.encode():
            return AttemptJournal(), {}
        return found

    def decisions(self) -> list[Line]:
        """Return the decisions of all terms, without most reports (``TermJournal``)."""
        return chain.read(self._paths, self._term)

    @property
    def terms(self) -> dict[Path, JournalPosition]:
        """How far the journals of terms were read."""
        return {path: known.mark for path, known in self._terms.items()}

    def _term(self, path: Path) -> list[Line]:
        known = self._terms.get(path)
        if known is None:
            found = self._kept.decoded(path.name, TermJournal.decode)
            known = self._terms[path] = found if found is not None else TermJournal()
        if known.read(path):
            self._kept.put(path.name, known.encode())
        return known.all


def _part(paths: AttemptPaths) -> str:
    return f"journal {paths.trial}.{paths.number}"
