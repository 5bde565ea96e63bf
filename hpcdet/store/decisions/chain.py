"""The decisions of all terms as one list.

Each term has a journal of its own, ``decisions/TERM.jsonl``. Its first record says how much of
which former term it accepts: what a fenced holder managed to write behind that point was never
decided. Following these records back from the newest term gives the one list that counts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdet.errors import IntegrityError
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files, journal, packed
from hpcdet.store.fs.journal import Line


@dataclass(frozen=True)
class Point:
    """A position in the list: after record ``n`` of a term, at a byte of its journal."""

    term: int
    n: int
    offset: int


Read = Callable[[Path], list[Line]]


def gap(paths: ExperimentPaths) -> str:
    """Return the gap in the decisions that blocks new ones, with its repair; "" if there is none.

    There is none if every record that a term has accepted of a former one can be read.
    """
    try:
        whole(paths)
    except IntegrityError as error:
        return f"{error.where}: {error.what}; {error.hint}"
    return ""


def whole(paths: ExperimentPaths) -> list[Line]:
    """Return all accepted records, as ``read``, but complete, as a basis for decisions.

    Raises:
        IntegrityError: a record that a term has accepted of a former one cannot be read.
    """
    found = _follow(paths, below=1 << 62)
    assert found is not None
    return found.lines


def read(paths: ExperimentPaths, lines: Read = journal.read) -> list[Line]:
    """Return all accepted records, in order. Each line has ``term`` beside its own ``n``.

    Args:
        lines: reads a term's journal, for callers that cache what they have read. It may leave
            records out, but not the first one.

    What is not visible yet is left out at the end: the result is always a prefix of the truth,
    or a list that ends in the middle of a term that a later one has accepted.
    """
    found = _follow(paths, below=None, read=lines)
    assert found is not None
    return found.lines


class Chain:
    """The journal of the term that is held, on top of what it accepts of the former ones.

    Attributes:
        since: the point after which ``history`` begins; None: it is complete.
        history: the records of former terms that this one accepts, and its own first one.
    """

    def __init__(
        self, history: list[Line], term: int, writer: journal.Writer, since: Point | None
    ) -> None:
        self.history = history
        self.term = term
        self.since = since
        self._writer = writer
        self._pending = False

    @classmethod
    def open(
        cls, paths: ExperimentPaths, term: int, holder: str, known: Iterable[Point] = ()
    ) -> Chain:
        """Begin the journal of a term that was just taken.

        Args:
            known: points up to which the caller knows the records; the first of these that
                lies in the accepted list is where ``history`` begins, and no further is asked for.

        Raises:
            IntegrityError: a record that a former term accepted cannot be read (any more, or
                not yet, on this node).
        """
        ways = (_follow(paths, below=term, since=point) for point in itertools.chain(known, [None]))
        way = next(found for found in ways if found is not None)
        writer = journal.Writer(paths.decisions(term))
        chain = cls(way.lines, term, writer, way.since)
        first = {"number": term, "holder": holder, "accepts": {"term": way.newest, "n": way.n}}
        try:
            chain.history.append(chain.append("term", **first))
        except BaseException:
            chain.close()
            raise
        return chain

    @property
    def point(self) -> Point:
        """The point after the last record, once all are durable."""
        return Point(self.term, self._writer.n, self._writer.offset)

    def append(self, kind: str, **fields: Any) -> Line:
        """Record a decision, durable on return. Return the record as readers will see it."""
        line = self.note(kind, **fields)
        self.commit()
        return line

    def note(self, kind: str, **fields: Any) -> Line:
        """Record a decision, durable only with the next ``commit``: no action before that."""
        n = self._writer.note(kind, **fields)
        self._pending = True
        return {"n": n, "kind": kind, **fields, "term": self.term}

    def commit(self) -> None:
        """Make all noted records durable with a single write and ``fsync``."""
        if self._pending:
            self._writer.sync()
            self._pending = False

    def close(self) -> None:
        """Close the journal; records noted since the last ``commit`` were never decided."""
        self._writer.close()


@dataclass(frozen=True)
class _Way:
    """Accepted lines after ``since``, with their newest term and its number of records."""

    lines: list[Line]
    newest: int
    n: int
    since: Point | None


def _follow(
    paths: ExperimentPaths,
    below: int | None,
    read: Read = journal.read,
    since: Point | None = None,
) -> _Way | None:
    """Follow the accepted lines of the terms under ``below`` back to ``since`` or the first one.

    With ``below`` the caller is going to build on them, so that a gap is an error. None: the
    records after ``since`` were never accepted.
    """
    folder = paths.decisions(0).parent
    terms = [n for n in packed.numbers(folder, ".jsonl") if below is None or n < below]
    parts: list[list[Line]] = []
    newest, newest_n = 0, 0
    accepted: int | None = None
    reached = since is None
    while terms:
        term = terms.pop()
        path, known = paths.decisions(term), 0
        if since is not None and term <= since.term:
            known = since.n
            accepts_it = accepted is None or accepted >= known
            if term < since.term or not accepts_it or _size(path) < since.offset:
                return None
            reached = True
            lines = journal.Reader(path, since.offset, known).read()
        else:
            lines = read(path)
        if accepted is not None:
            lines = [line for line in lines if line["n"] <= accepted]
        have = lines[-1]["n"] if lines else known
        if accepted is not None and have < accepted and below is not None:
            raise IntegrityError(
                f"record {have + 1} of {accepted} cannot be read",
                where=str(path),
                hint="a network file system may show it in a minute; if not, put the file back "
                "from a snapshot or a backup: nothing is decided until then, running trials go on",
            )
        if not have:
            continue
        if accepted is None:
            newest, newest_n = term, have
        parts.append([{**line, "term": term} for line in lines])
        if known:
            break
        accepted, former = _accepts(lines[0], path)
        terms = [n for n in terms if n < former]
        if former:
            terms.append(former)
    if not reached:
        return None
    lines = [line for part in reversed(parts) for line in part]
    return _Way(lines, newest, newest_n, since)


def _accepts(first: Line, path: Path) -> tuple[int, int]:
    """Return how many records a term accepts, and of which former term; 0 of 0 for the first."""
    before = first.get("accepts")
    found = [before.get(key) for key in ("n", "term")] if isinstance(before, dict) else []
    match found:
        case [int(n), int(term)]:
            return n, term
    raise files.damaged(path, "its first record does not say what it accepts")


def _size(path: Path) -> int:
    """Return the size of a journal in bytes; 0 for a missing one, which no snapshot reaches."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
