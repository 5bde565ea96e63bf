"""The report's contents as plain values for its template, from the experiment's folder only."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hpcdet import __version__, units
from hpcdet.read.experiment.gather import Gathered
from hpcdet.read.report import curves, fronts, timeline_chart
from hpcdet.read.report.scale import number, slot_time
from hpcdet.read.report.steps import steps
from hpcdet.read.report.uses import uses
from hpcdet.read.views import logs, timeline, views
from hpcdet.read.views.checkpoints import CheckpointView
from hpcdet.read.views.costs import SpentView
from hpcdet.read.views.shapes import shape
from hpcdet.read.views.spans import KINDS, WELL, Span, spans, totals
from hpcdet.read.views.trials import AttemptView
from hpcdet.read.views.views import StatusView
from hpcdet.store.config import data_secrets, resolved_config

ROWS = 1000
"""Rows that a table may have; what is more is said and left out."""
TRACE_LINES = 40
TRACE_CHARACTERS = 8000
_EXPECTED = WELL | {"preempted", "walltime", "canceled", "released"}


@dataclass(frozen=True)
class Share:
    """A part of the bar of time by kind; ``x`` and ``width`` in percent."""

    kind: str
    word: str
    text: str
    percent: str
    x: float
    width: float


@dataclass(frozen=True)
class Failure:
    """Attempts that failed in the same way."""

    reason: str
    error: str
    attempts: list[str]
    trace: str
    log: str


def content(gathered: Gathered, now: float) -> dict[str, Any]:
    """Return the template's variables.

    Args:
        now: epoch seconds at which the report is made; what still goes on ends here.
    """
    status = views.status(gathered)
    attempts = views.attempts(gathered)
    checkpoints = views.checkpoints(gathered)
    found = spans(gathered, now)
    sums = totals(found)
    names = sorted({name for row in status.trials for name in _flat(row.hyperparameters)})
    hyperparameters = [_flat(row.hyperparameters) for row in status.trials]
    varied = [n for n in names if len({repr(h.get(n)) for h in hyperparameters}) > 1]
    verdicts = _verdicts(status, timeline.decided(gathered))
    return {
        "status": {**vars(status), "created": _short(status.created)},
        "generated": _short(datetime.fromtimestamp(now, UTC).isoformat()),
        "version": __version__,
        "notes": list(_notes(status, attempts)),
        "numbers": _numbers(status, attempts, checkpoints, sums),
        "shares": _shares(sums),
        "steps": steps(gathered),
        "uses": uses(gathered),
        "timeline": timeline_chart.timeline(gathered, found),
        "signs": timeline_chart.MARKS,
        "wrong": timeline_chart.WRONG,
        "kinds": KINDS,
        "attempts": [_attempt_row(row) for row in attempts[:ROWS]],
        "attempts_left_out": max(0, len(attempts) - ROWS),
        "varied": varied,
        "constant": {
            n: shape(hyperparameters[0].get(n), number) or "-" for n in names if n not in varied
        },
        "trials": _trials(status, varied, found)[:ROWS],
        "trials_left_out": max(0, len(status.trials) - ROWS),
        "verdicts": verdicts[:ROWS],
        "heirs": any(row["parent"] for row in verdicts),
        "front": fronts.front(gathered),
        "charts": curves.charts(gathered),
        "checkpoints": [_checkpoint_row(row) for row in checkpoints[:ROWS]],
        "checkpoints_left_out": max(0, len(checkpoints) - ROWS),
        "failures": list(_failures(gathered, attempts)),
        "config": resolved_config.dump(data_secrets.hidden(gathered.config.raw)).decode(),
        "provenance": _provenance(gathered.provenance),
    }


def _notes(status: StatusView, attempts: Sequence[AttemptView]) -> Iterator[str]:
    """Yield notes that a reader must know before relying on the report."""
    if status.state not in ("COMPLETED", "CANCELED", "ERROR"):
        yield "The experiment is not over: this is how it stood when the report was made."
    if not attempts:
        yield "Nothing has run yet."
    running = sum(not row.reason for row in attempts)
    if running:
        yield f"{running} attempt{'s have' if running > 1 else ' has'} not ended."
    if status.why:
        yield str(status.why)
    for loss in status.purged:
        yield f"{loss[0].upper()}{loss[1:]}."


def _numbers(
    status: StatusView,
    attempts: Sequence[AttemptView],
    checkpoints: Sequence[CheckpointView],
    sums: Mapping[str, float],
) -> list[tuple[str, str, str]]:
    """Return the figures at the top: (label, value, explanation)."""
    best = status.best
    constrained = any(row.compared and row.compared.constraints for row in status.trials)
    states = Counter(row.state for row in status.trials)
    reasons = Counter(row.reason for row in attempts)
    used = sums["starting"] + sums["training"] + sums["lost"]
    size = sum(row.bytes or 0 for row in checkpoints)
    useful = f"{100 * sums['training'] / used:.0f} % of it useful" if used else ""
    return [
        (
            f"Best {'feasible ' if constrained else ''}{status.metric}",
            number(best.value) if best else "none yet",
            f"trial {best.trial} at step {number(best.step)}" if best else _nearest(status),
        ),
        (
            "Trials",
            str(len(status.trials)),
            ", ".join(f"{count} {state.lower()}" for state, count in sorted(states.items())),
        ),
        ("Used", slot_time(used), useful),
        _budget(status.spent),
        ("Waited", slot_time(sums["waiting"]), "for allocations"),
        (
            "Attempts",
            str(len(attempts)),
            f"{reasons['preempted']} preempted, {reasons['walltime']} out of time, "
            f"{sum(n for r, n in reasons.items() if r and r not in _EXPECTED)} failed",
        ),
        ("Checkpoints", str(len(checkpoints)), units.size(size)),
    ]


def _budget(spent: SpentView) -> tuple[str, str, str]:
    """Return the figure of slot time spent, with the overhead of workers without a trial."""
    overhead = f"{slot_time(spent.overhead_slot_hours * 3600)} of it overhead"
    if spent.charged_slot_hours:
        overhead += f", {slot_time(spent.charged_slot_hours * 3600)} charged by accounting"
    if spent.reserved_slot_hours:
        overhead += f", {slot_time(spent.reserved_slot_hours * 3600)} more reserved"
    most = spent.budget.slot_hours
    if most is not None:
        left = slot_time((spent.left_slot_hours or 0.0) * 3600)
        overhead += f", {left} left of a budget of {number(most)} slot hours"
    return ("Spent", slot_time(spent.slot_hours * 3600), overhead)


def _shares(sums: Mapping[str, float]) -> list[Share]:
    whole = sum(sums.values())
    shares = []
    x = 0.0
    for kind, amount in sums.items():
        if not amount:
            continue
        width = 100 * amount / whole
        shares.append(
            Share(
                kind, KINDS[kind], slot_time(amount), f"{width:.1f} %", round(x, 3), round(width, 3)
            )
        )
        x += width
    return shares


def _trials(
    status: StatusView, varied: Sequence[str], found: Sequence[Span]
) -> list[dict[str, Any]]:
    used: dict[int, float] = defaultdict(float)
    for span in found:
        if span.kind not in ("waiting", "paused"):
            used[span.trial] += span.slot_s
    rows = []
    for row in status.trials:
        hyperparameters = _flat(row.hyperparameters)
        rows.append(
            {
                "trial": row.trial,
                "state": row.state,
                "best": number(row.best),
                "best_step": number(row.best_step),
                "steps": number(row.steps),
                "attempts": row.attempts,
                "failures": row.failures,
                "used": slot_time(used[row.trial]),
                "varied": [shape(hyperparameters.get(name), number) for name in varied],
                "is_best": status.best is not None and status.best.trial == row.trial,
            }
        )
    return rows


def _verdicts(status: StatusView, decided: Mapping[int, str]) -> list[dict[str, Any]]:
    """Return trials that began from another one, or with decisions since."""
    return [
        {
            "trial": row.trial,
            "steps": number(row.steps),
            "parent": row.parent and f"trial {row.parent.replace('@', ' at ')}",
            "decided": decided.get(row.trial, ""),
        }
        for row in status.trials
        if row.parent or row.trial in decided
    ]


def _nearest(status: StatusView) -> str:
    nearest = status.nearest
    return f"no trial is feasible; nearest is trial {nearest.trial}" if nearest else ""


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested hyperparameters under dotted names."""
    if not isinstance(value, dict) or (not value and prefix):
        return {prefix: value}
    found: dict[str, Any] = {}
    for key, item in value.items():
        found |= _flat(item, f"{prefix}.{key}" if prefix else str(key))
    return found


def _attempt_row(row: AttemptView) -> dict[str, Any]:
    return {
        **vars(row),
        "reason": row.reason.replace("_", " ") or "running",
        "start": _short(row.start),
        "end": _short(row.end),
        "lasted": units.duration(row.duration_s),
        "steps": _steps(row.from_step, row.steps),
    }


def _steps(begin: int | None, end: int | None) -> str:
    return "none" if begin is None else f"{number(begin)}–{number(max(begin, end or 0))}"


def _checkpoint_row(row: CheckpointView) -> dict[str, Any]:
    return {
        **vars(row),
        "bytes": units.size(row.bytes or 0),
        "metric": number(row.metric),
        "time": _short(row.time),
        "digest": row.digest[:16],
        "kept": ", ".join(row.kept),
    }


def _short(time: str) -> str:
    """Format a time as ``2026-03-01 12:00:05``, UTC."""
    return time[:19].replace("T", " ")


def _failures(gathered: Gathered, attempts: Sequence[AttemptView]) -> Iterator[Failure]:
    """Group failures that differ in numbers only, the most frequent first."""
    alike: dict[tuple[str, str], list[AttemptView]] = defaultdict(list)
    for row in attempts:
        if row.reason and row.reason not in _EXPECTED:
            alike[row.reason, re.sub(r"\d+", "#", row.error)].append(row)
    for (reason, _), rows in sorted(alike.items(), key=lambda item: (-len(item[1]), item[0])):
        first = rows[0]
        blocks = logs.errors(gathered.paths, first.trial, first.attempt)
        lines = [line.text for line in blocks[0][-TRACE_LINES:]] if blocks else []
        yield Failure(
            reason=reason.replace("_", " "),
            error=first.error,
            attempts=[f"{row.trial}.{row.attempt}" for row in rows],
            trace="\n".join(lines)[-TRACE_CHARACTERS:],
            log=str(Path(first.log).relative_to(gathered.paths.root)),
        )


def _provenance(value: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return short facts on the experiment's provenance; long ones stay in the file."""
    flat = _flat(dict(value))
    return [
        (name, str(item))
        for name, item in sorted(flat.items())
        if isinstance(item, str | int | float) and len(str(item)) <= 200 and "\n" not in str(item)
    ][:60]
