"""The output of the ranks of all attempts, as one stream of lines.

Logs grow to gigabytes: they are read in blocks as lines are asked for, and the last lines from
the end.
"""

from __future__ import annotations

import itertools
import os
import re
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import hpcdet
from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Claim, End
from hpcdet.store.fs import packed

_RANK = re.compile(r"rank-(\d+)\.log")
_STAMP = re.compile(r"\[?(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)")
_LEVEL = re.compile(r"\b(DEBUG|INFO|WARNING|ERROR|CRITICAL|FATAL)\b")
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_BLOCK = 64 * 1024
LONGEST = 1024 * 1024
"""Bytes after which a line is cut into several."""
_CARRY = 8 * LONGEST
"""Bytes read back, at most, in search of what tells the time of the last lines."""
_TRACEBACK = "Traceback (most recent call last)"
_LINKS = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_LONGEST_MESSAGE = 50
"""Lines of an error's message among which the link to the next traceback is looked for."""
LAUNCHER = -1
"""The "rank" of what the launcher said itself."""


@dataclass(frozen=True)
class LogLine:
    """One line of one rank."""

    trial: int
    """The trial's number."""
    attempt: int
    """The attempt's number."""
    rank: int
    """The rank; -1: the launcher."""
    text: str
    """The line."""
    time: str = ""
    """Its time stamp, or that of the last line with one; "" without."""
    level: str = ""
    """``DEBUG``, ``INFO``, ``WARNING``, ``ERROR``, ``CRITICAL``; "" without one."""


@dataclass
class LogSource:
    """A log file, read from the last position; ``claim`` has the time when its attempt began."""

    trial: int
    attempt: int
    rank: int
    path: Path
    claim: Path | None = None
    offset: int = 0
    _time: str = field(default="", init=False)
    _level: str = field(default="", init=False)

    def lines(self, whole: bool) -> Iterator[LogLine]:
        """Yield new complete lines; with ``whole``, the unfinished last one as well.

        They are read as they are taken: where the iteration is left, the next one goes on.
        """
        try:
            file = _open(self.path)
        except FileNotFoundError:
            return
        with file:
            file.seek(self.offset)
            rest = b""
            while block := file.read(_BLOCK):
                # "\n" alone ends a line: a carriage return of a progress bar does not
                *complete, rest = (rest + block).split(b"\n")
                for raw in complete:
                    self.offset += len(raw) + 1
                    yield self._line(raw)
                if len(rest) > LONGEST:
                    self.offset += len(rest)
                    yield self._line(rest)
                    rest = b""
            if whole and rest:
                self.offset += len(rest)
                yield self._line(rest)

    def tail(self, count: int, *, whole: bool, carried: bool) -> list[LogLine]:
        """Return the last lines; earlier ones no longer count as new.

        Args:
            carried: also read back to what tells their time and level, within reason. Without it
                these may be missing, and no more is read than the lines need.
        """
        try:
            with _open(self.path) as file:
                self.offset = _start_of_last(file, count, carried)
        except FileNotFoundError:
            return []
        return list(deque(self.lines(whole), maxlen=count))

    def _line(self, raw: bytes) -> LogLine:
        """Parse a line; without its own time or level (as in a traceback) it has the last one's."""
        text = _shown(raw)
        match = _STAMP.match(text)
        stamp = _utc(match[1]) if match else ""
        self._time = stamp or self._time
        level = _LEVEL.search(text[:80])
        if level:
            self._level = "CRITICAL" if level[1] == "FATAL" else level[1]
        elif stamp:
            self._level = ""
        return LogLine(self.trial, self.attempt, self.rank, text, self._time, self._level)


def _open(path: Path) -> IO[bytes]:
    return packed.open_file(path)


def _shown(raw: bytes) -> str:
    """Return a line as a terminal would show it: the text after the last carriage return."""
    text = raw.decode(errors="replace")
    return text[:-1] if text.endswith("\r") else text.rpartition("\r")[2]


def _start_of_last(file: IO[bytes], count: int, carried: bool) -> int:
    """Return an offset from which at least ``count`` lines follow, complete or not.

    ``carried``: a line with a time begins there, which decides for all that follow.
    """
    at = file.seek(0, os.SEEK_END)
    found, later = -1, b""  # what follows the last newline may be no line
    enough: int | None = None
    while at > 0 and (enough is None or (carried and enough - at < _CARRY)):
        size = min(_BLOCK, at)
        at = file.seek(at - size)
        first, *others = (file.read(size) + later).split(b"\n")
        end = at + len(first) + sum(len(raw) + 1 for raw in others)
        for raw in reversed(others):
            found += 1
            end -= len(raw)
            if found >= count:
                match = _STAMP.match(_shown(raw)) if carried else None
                if not carried or (match and _utc(match[1])):
                    return end
                enough = end if enough is None else enough
            end -= 1
        later = first
        if len(later) > LONGEST:
            found, later = found + 1, b""
            enough = at if found >= count and enough is None else enough
    return at


def _utc(stamp: str) -> str:
    """Return a time as in records; "" for digits that only look like one."""
    try:
        at = datetime.fromisoformat(stamp.replace(",", ".")).astimezone(UTC)
    except (ValueError, OverflowError):
        return ""
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


def sources(
    paths: ExperimentPaths,
    *,
    trial: int = 0,
    attempt: int = 0,
    ranks: Collection[int] = (),
    launcher: bool = False,
    previous: bool = False,
) -> list[LogSource]:
    """Return the present log files, by trial, attempt and rank; 0 and () stand for all.

    Args:
        launcher: what the launcher said itself, too.
        previous: only of each trial's last attempt but one.
    """
    chosen = _attempts(paths, trial, attempt, previous)
    return [source for one in chosen for source in _sources(one, ranks, launcher)]


def _attempts(
    paths: ExperimentPaths, trial: int, attempt: int, previous: bool
) -> Iterator[AttemptPaths]:
    for each in paths.trials():
        if trial in (0, each.number):
            attempts = each.attempts()[-2:-1] if previous else each.attempts()
            yield from (one for one in attempts if attempt in (0, one.number))


def _sources(attempt: AttemptPaths, ranks: Collection[int], launcher: bool) -> list[LogSource]:
    names = packed.names(attempt.logs)
    numbers = sorted(int(match[1]) for name in names if (match := _RANK.fullmatch(name)))
    found = [
        LogSource(attempt.trial, attempt.number, rank, attempt.log(rank), attempt.claim)
        for rank in numbers
        if not ranks or rank in ranks
    ]
    if launcher and attempt.launcher_log.name in names:
        launcher_log = attempt.launcher_log
        found.append(
            LogSource(attempt.trial, attempt.number, LAUNCHER, launcher_log, attempt.claim)
        )
    return found


def read(
    source: LogSource, *, since: str = "", until: str = "", level: str = "", whole: bool = True
) -> Iterator[LogLine]:
    """Yield a source's new lines between two ISO times and of at least one level.

    A line without a time of its own counts with the one before it, and where there is none,
    with the time its attempt began. Without ``whole`` an unfinished last line is left for later.
    """
    begin = _began(source) if since or until else ""
    for line in source.lines(whole=whole):
        time = line.time or begin
        if (since and time < since) or (until and time > until):
            continue
        if level and (not line.level or LEVELS.index(line.level) < LEVELS.index(level)):
            continue
        yield line


def _began(source: LogSource) -> str:
    claim = Claim.read(source.claim) if source.claim else None
    return claim.at if claim else ""


def of_jobs(
    paths: ExperimentPaths, submission: int = 0, task: str = "", *, lines: int = 10
) -> list[str]:
    """Return the last lines printed by a submission's batch scripts and workers.

    Args:
        submission: its number; 0: the newest one of which there is a log.
        task: the scheduler's id of the one that is meant, if it has a log of its own.
    """
    for number in [submission] if submission else reversed(paths.submissions()):
        try:
            files = sorted(paths.job_log(number).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            continue
        files = [file for file in files if file.name == f"{task}.log"] or files
        sources = [LogSource(0, 0, LAUNCHER, file) for file in files if file.is_file()]
        # blank lines do not count
        ends = [source.tail(10 * lines, whole=True, carried=False) for source in sources]
        return [line.text for end in ends for line in end if line.text.strip()][-lines:]
    return []


def first_traceback(source: LogSource) -> list[LogLine]:
    """Return the first traceback in a log with those chained to it; empty if there is none."""
    lines = source.lines(whole=True)
    chain = list(itertools.islice(filter(_begins, lines), 1))
    while chain:
        chain += _to_its_error(lines)
        after = _after_error(lines)
        chain += after
        if not (after and after[-1].text in _LINKS):
            break
    return chain


def _begins(line: LogLine) -> bool:
    return line.text.startswith(_TRACEBACK)


def _to_its_error(lines: Iterator[LogLine]) -> Iterator[LogLine]:
    """Return the frames of a traceback, and the line that names the error."""
    for line in lines:
        yield line
        if line.text and not line.text.startswith((" ", "\t")) and not _begins(line):
            return


def _after_error(lines: Iterator[LogLine]) -> list[LogLine]:
    """Return the rest of an error's message up to a chained error; else its indented lines."""
    after: list[LogLine] = []
    for line in itertools.islice(lines, _LONGEST_MESSAGE):
        if _begins(line):
            break
        after.append(line)
        if line.text in _LINKS:
            return after
    return list(itertools.takewhile(lambda line: line.text.startswith((" ", "\t")), after))


_PACKAGE = Path(hpcdet.__file__).parent
_FRAME = re.compile(r'  File ".*/hpcdet/(?P<module>[a-z0-9_/]{1,200}\.py)", line \d+')


def folded(trace: Sequence[str]) -> list[str]:
    """Return a traceback's lines with runs of hpcdet's own frames as ``  … 3 frames of hpcdet``.

    One that has no other frames stays as it is.
    """
    found: list[str] = []
    own = others = 0
    for line in [*trace, ""]:
        if line.startswith("  File "):
            frame = _FRAME.match(line)
            if frame is not None and (_PACKAGE / frame["module"]).is_file():
                own += 1
                continue
            others += 1
        elif own and line.startswith("    "):
            continue  # the code of our frame
        if own:
            found.append(f"  … {own} frame{'s' if own > 1 else ''} of hpcdet")
            own = 0
        found.append(line)
    return found[:-1] if others else list(trace)


def errors(
    paths: ExperimentPaths, trial: int = 0, attempt: int = 0, previous: bool = False
) -> list[list[LogLine]]:
    """Return each rank's first traceback of each attempt; the launcher's if ranks have none.

    Of attempts that were followed by others of the trial, all are looked at; with ``previous``,
    only the last but one.
    """
    found: list[list[LogLine]] = []
    for one in _attempts(paths, trial, attempt, previous):
        tracebacks = [first_traceback(source) for source in _sources(one, (), False)]
        found.extend(trace for trace in tracebacks if trace)
        end = End.read(one.end)
        failed = end is not None and end.reason in ("user_error", "oom", "launch_failed")
        if failed and not any(tracebacks):
            launcher = [s for s in _sources(one, (), True) if s.rank == LAUNCHER]
            said = [source.tail(20, whole=True, carried=True) for source in launcher]
            found.extend(lines for lines in said if lines)
    return found
