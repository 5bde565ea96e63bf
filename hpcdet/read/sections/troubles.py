"""The sections ``failures`` and ``logs``: what went wrong, and what was printed."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcdet.read.experiment.gather import Gathered
from hpcdet.read.sections.overview import EXPECTED
from hpcdet.read.views import logs as log_views
from hpcdet.read.views.trials import AttemptView

TRACE_LINES = 40
TRACE_CHARACTERS = 8000
TAIL_LINES = 200
TAIL_CHARACTERS = 40_000


@dataclass(frozen=True)
class FailureView:
    """Attempts that failed in the same way."""

    reason: str
    """Why they ended."""
    error: str
    """The first one's error."""
    attempts: list[str]
    """The attempts, as ``3.1``: trial and attempt."""
    nodes: dict[str, int]
    """How many of them ran on each node."""
    trace: str
    """The first one's traceback, without hpcdet's own frames; "" without one."""
    log: str
    """Its log, relative to the experiment's folder."""


@dataclass(frozen=True)
class FailuresSection:
    """Failures, the most frequent first."""

    groups: list[FailureView]
    """Attempts that failed alike."""


@dataclass(frozen=True)
class LogView:
    """The end of a log."""

    attempt: str
    """The attempt, as ``3.1``."""
    why: str
    """Why this one is shown."""
    log: str
    """The file, relative to the experiment's folder."""
    lines: list[str]
    """Its last lines."""


@dataclass(frozen=True)
class LogsSection:
    """Ends of logs: of the best trial, and of the first failure."""

    rows: list[LogView]
    """The logs."""


def failures(gathered: Gathered, attempts: Sequence[AttemptView]) -> FailuresSection:
    """Return the section ``failures``: those that differ in numbers only are one."""
    alike: dict[tuple[str, str], list[AttemptView]] = defaultdict(list)
    for row in attempts:
        if row.reason and row.reason not in EXPECTED:
            alike[row.reason, re.sub(r"\d+", "#", row.error)].append(row)
    found = sorted(alike.items(), key=lambda item: (-len(item[1]), item[0]))
    return FailuresSection([_failure(gathered, reason, rows) for (reason, _), rows in found])


def _failure(gathered: Gathered, reason: str, rows: Sequence[AttemptView]) -> FailureView:
    first = rows[0]
    blocks = log_views.errors(gathered.paths, first.trial, first.attempt)
    lines = log_views.folded([line.text for line in blocks[0]])[-TRACE_LINES:] if blocks else []
    return FailureView(
        reason=reason.replace("_", " "),
        error=first.error,
        attempts=[f"{row.trial}.{row.attempt}" for row in rows],
        nodes=dict(Counter(node for row in rows for node in row.nodes).most_common(20)),
        trace="\n".join(lines)[-TRACE_CHARACTERS:],
        log=_relative(gathered, first),
    )


def _relative(gathered: Gathered, row: AttemptView) -> str:
    path = Path(row.log)
    for root in (gathered.paths.root, gathered.paths.root.resolve()):
        if path.is_relative_to(root):
            return str(path.relative_to(root))
    return path.name


def logs(gathered: Gathered, attempts: Sequence[AttemptView], best: int | None) -> LogsSection:
    """Return the section ``logs``."""
    return LogsSection([*_logs(gathered, attempts, best)])


def _logs(
    gathered: Gathered, attempts: Sequence[AttemptView], best: int | None
) -> Iterator[LogView]:
    failed = next((row for row in attempts if row.reason and row.reason not in EXPECTED), None)
    newest = [row for row in attempts if row.trial == best] or list(attempts)
    chosen = [(newest[-1], "the best trial" if best else "the newest attempt")] if newest else []
    if failed is not None and failed not in [row for row, _ in chosen]:
        chosen.append((failed, "the first failure"))
    for row, why in chosen:
        found = log_views.sources(gathered.paths, trial=row.trial, attempt=row.attempt, ranks=[0])
        source = found[0] if found else None
        lines = source.tail(TAIL_LINES, whole=True, carried=False) if source is not None else []
        texts = [line.text for line in lines]
        while texts and sum(map(len, texts)) > TAIL_CHARACTERS:
            texts.pop(0)
        if texts:
            yield LogView(f"{row.trial}.{row.attempt}", why, _relative(gathered, row), texts)
