"""The decisions of all terms as one list.

Each term has a journal of its own, ``decisions/TERM.jsonl``. Its first record says how much of
which former term it accepts: what a fenced holder managed to write behind that point was never
decided. Following these records back from the newest term gives the one list that counts.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcdet.errors import IntegrityError
from hpcdet.store import journal
from hpcdet.store.journal import Line
from hpcdet.store.layout import ExperimentPaths, numbers

Read = Callable[[Path], list[Line]]


def gap(paths: ExperimentPaths) -> str:
    """What keeps anybody from deciding on top of what has been decided, and what to do about it.

    "" if nothing does: every record that a term has accepted of a former one can be read.
    """
    try:
        _history(paths, below=1 << 62)
    except IntegrityError as error:
        return f"{error.where}: {error.what}; {error.hint}"
    return ""


def read(paths: ExperimentPaths, lines: Read = journal.read) -> list[Line]:
    """All accepted records, in order. Each line has ``term`` beside its own ``n``.

    Args:
        lines: reads a term's journal, for who remembers what it has read.

    What is not visible yet is left out at the end: the result is always a prefix of the truth,
    or a list that ends in the middle of a term that a later one has accepted.
    """
    found, _, _ = _history(paths, below=None, read=lines)
    return found


class Chain:
    """The journal of the term that is held, on top of what it accepts of the former ones.

    Attributes:
        history: the records of former terms that this one accepts.
    """

    def __init__(self, history: list[Line], term: int, writer: journal.Writer) -> None:
        self.history = history
        self.term = term
        self._writer = writer

    @classmethod
    def open(cls, paths: ExperimentPaths, term: int, holder: str) -> Chain:
        """Begin the journal of a term that was just taken.

        Raises:
            IntegrityError: a record that a former term accepted cannot be read (any more, or
                not yet, on this node).
        """
        history, former, n = _history(paths, below=term)
        writer = journal.Writer(paths.decisions(term))
        chain = cls(history, term, writer)
        first = {"number": term, "holder": holder, "accepts": {"term": former, "n": n}}
        try:
            chain.history.append(chain.append("term", **first))
        except BaseException:
            chain.close()
            raise
        return chain

    def append(self, kind: str, **fields: Any) -> Line:
        """Decide: when this returns, the record is durable. Returns it as readers will see it."""
        return self.extend([(kind, fields)])[0]

    def extend(self, records: list[tuple[str, dict[str, Any]]]) -> list[Line]:
        """Decide several things in one order, at the price of one ``fsync``."""
        lines: list[Line] = []
        for kind, fields in records:
            n = self._writer.append(kind, **fields)
            lines.append({"n": n, "kind": kind, **fields, "term": self.term})
        self._writer.sync()
        return lines

    def close(self) -> None:
        self._writer.close()


def _history(
    paths: ExperimentPaths, below: int | None, read: Read = journal.read
) -> tuple[list[Line], int, int]:
    """Accepted lines of the terms under ``below``, and the newest of these with its length.

    With ``below`` the caller is going to build on them, so that a gap is an error.
    """
    folder = paths.decisions(0).parent
    terms = [n for n in numbers(folder, ".jsonl") if below is None or n < below]
    parts: list[list[Line]] = []
    newest, newest_n = 0, 0
    accepted: int | None = None
    while terms:
        term = terms.pop()
        lines = read(paths.decisions(term))[:accepted]
        if accepted is not None and len(lines) < accepted and below is not None:
            raise IntegrityError(
                f"record {len(lines) + 1} of {accepted} cannot be read",
                where=str(paths.decisions(term)),
                hint="a network file system may show it in a minute; if not, put the file back "
                "from a snapshot or a backup: nothing is decided until then, running trials go on",
            )
        if not lines:
            continue
        if accepted is None:
            newest, newest_n = term, len(lines)
        parts.append([{**line, "term": term} for line in lines])
        before = lines[0]["accepts"]
        accepted = before["n"]
        terms = [n for n in terms if n < before["term"]]
        if before["term"]:
            terms.append(before["term"])
    return [line for part in reversed(parts) for line in part], newest, newest_n
