"""The report's contents as plain values for its template, from the experiment's folder only."""

from __future__ import annotations

import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcdet import __version__, units
from hpcdet.policy import named_policy
from hpcdet.read.experiment.gather import Gathered
from hpcdet.read.experiment.timing import PHASES
from hpcdet.read.report import curves, fronts, timeline_chart
from hpcdet.read.report.scale import number, slot_time
from hpcdet.read.report.step_phases import steps, use, uses
from hpcdet.read.usage.spans import KINDS, WELL, spans, totals
from hpcdet.read.views import describe, logs, timeline, views
from hpcdet.read.views.items import shape
from hpcdet.read.views.trials import AttemptView
from hpcdet.read.views.views import StatusView
from hpcdet.store.config import data_secrets, resolved_config

if TYPE_CHECKING:  # trials without a policy need nothing of it
    from hpcdet.read.governed.governed_trials import CheckView, GovernanceView
    from hpcdet.read.governed.trained_policies import TrialPolicyChangeView

ROWS = 1000
"""Rows that a table may have; what is more is said and left out."""
TRACE_LINES = 40
TRACE_CHARACTERS = 8000
_EXPECTED = WELL | {"preempted", "walltime", "canceled", "released", "resized"}


@dataclass(frozen=True)
class Share:
    """A part of the bar of time by kind: slot-seconds; ``x`` and ``width`` in percent."""

    kind: str
    amount: float
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
    used: dict[int, float] = defaultdict(float)
    for span in found:
        if span.kind not in ("waiting", "paused"):
            used[span.trial] += span.slot_s
    flat = {row.trial: _flat(row.hyperparameters) for row in status.trials}
    names = sorted({name for each in flat.values() for name in each})
    values = {name: [each.get(name) for each in flat.values()] for name in names}
    varied = [name for name in names if len(set(map(repr, values[name]))) > 1]
    decided = timeline.decided(gathered)
    reasons = Counter(row.reason for row in attempts)
    governed = list(_governed(gathered))
    return {
        "status": status,
        "rows": ROWS,
        "generated": datetime.fromtimestamp(now, UTC).isoformat(),
        "version": __version__,
        "notes": list(_notes(status, attempts)),
        "best": describe.best(status),
        "cost": describe.cost(status.spent, _slot_time),
        "sums": sums,
        "reasons": reasons,
        "failed": sum(n for reason, n in reasons.items() if reason and reason not in _EXPECTED),
        "shares": list(_shares(sums)),
        "steps": steps(gathered),
        "phase_words": PHASES,
        "uses": uses(gathered),
        "timeline": timeline_chart.timeline(gathered, found),
        "signs": timeline_chart.MARKS,
        "wrong": timeline_chart.WRONG,
        "kinds": KINDS,
        "attempts": attempts,
        "used": used,
        "flat": flat,
        "varied": varied,
        "constant": {name: values[name][0] for name in names if name not in varied},
        "decided": decided,
        "verdicts": [row for row in status.trials if row.parent or row.trial in decided],
        "front": fronts.front(gathered),
        "charts": curves.charts(gathered),
        "governed": governed,
        "changed": _changed(governed),
        "checkpoints": checkpoints,
        "failures": list(_failures(gathered, attempts)),
        "config": resolved_config.dump(data_secrets.hidden(gathered.config.raw)).decode(),
        "provenance": _provenance(gathered.provenance),
    }


@dataclass(frozen=True)
class GovernedTrial:
    """A trial under a policy, as the report shows it.

    Attributes:
        view: what is known of it.
        entropies: values by layer, by what they are entropies of.
        outside: layers whose weights lie out of their band.
        recorded: what else its checkpoint records, by name, in words.
        checks: by attempt; what each looks for, its outcome and what it found.
    """

    view: GovernanceView
    entropies: dict[str, list[float | None]]
    outside: list[str]
    recorded: list[tuple[str, str]]
    checks: dict[int, list[tuple[str, CheckView]]]


def _governed(gathered: Gathered) -> Iterator[GovernedTrial]:
    """Yield trials under the policy; none without one."""
    if gathered.config.governance is None:
        named_policy.require(gathered.paths, gathered.config)
        return
    from hpcdet.policy.codes import RESUME_CODES
    from hpcdet.read.governed import recorded_words
    from hpcdet.read.governed.governed_trials import governance

    for view in governance(gathered):
        checks: dict[int, list[tuple[str, CheckView]]] = {}
        for one in view.checks:
            checks.setdefault(one.attempt, []).append((RESUME_CODES.get(one.code, ""), one))
        yield GovernedTrial(
            view,
            recorded_words.entropies(view),
            recorded_words.outside(view),
            list(recorded_words.recorded(view)),
            checks,
        )


def _changed(governed: Sequence[GovernedTrial]) -> list[tuple[TrialPolicyChangeView, str]]:
    """Each record of what was changed under the policy, and the attempts that it began with."""
    known: dict[int, TrialPolicyChangeView] = {}
    began: dict[int, list[str]] = defaultdict(list)
    for each in governed:
        for one in each.view.changes:
            known.setdefault(one.number, one)
            if one.attempt:
                began[one.number].append(f"{each.view.trial}: {one.attempt}")
    return [(one, ", ".join(began[number]) or "none yet") for number, one in sorted(known.items())]


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


def _shares(sums: Mapping[str, float]) -> Iterator[Share]:
    whole, x = sum(sums.values()), 0.0
    for kind, amount in sums.items():
        if amount:
            yield Share(kind, amount, x, 100 * amount / whole)
            x += 100 * amount / whole


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested hyperparameters under dotted names."""
    if not isinstance(value, dict) or (not value and prefix):
        return {prefix: value}
    found: dict[str, Any] = {}
    for key, item in value.items():
        found |= _flat(item, f"{prefix}.{key}" if prefix else str(key))
    return found


def _slot_time(slot_hours: float) -> str:
    return slot_time(slot_hours * 3600)


def _short(time: str) -> str:
    """Format a time as ``2026-03-01 12:00:05``, UTC."""
    return time[:19].replace("T", " ")


def _range(begin: int | None, end: int | None) -> str:
    """Format the steps of an attempt."""
    return "none" if begin is None else f"{number(begin)}–{number(max(begin, end or 0))}"


FILTERS: dict[str, Callable[..., str]] = {
    "begun_from": describe.begun_from,
    "duration": units.duration,
    "number": number,
    "range": _range,
    "shape": lambda value: shape(value, number),
    "short": _short,
    "size": units.size,
    "slot_time": slot_time,
    "use": use,
}
"""The template's filters."""


def _failures(gathered: Gathered, attempts: Sequence[AttemptView]) -> Iterator[Failure]:
    """Group failures that differ in numbers only, the most frequent first."""
    alike: dict[tuple[str, str], list[AttemptView]] = defaultdict(list)
    for row in attempts:
        if row.reason and row.reason not in _EXPECTED:
            alike[row.reason, re.sub(r"\d+", "#", row.error)].append(row)
    for (reason, _), rows in sorted(alike.items(), key=lambda item: (-len(item[1]), item[0])):
        first = rows[0]
        blocks = logs.errors(gathered.paths, first.trial, first.attempt)
        lines = logs.folded([line.text for line in blocks[0]])[-TRACE_LINES:] if blocks else []
        yield Failure(
            reason=reason.replace("_", " "),
            error=first.error,
            attempts=[f"{row.trial}.{row.attempt}" for row in rows],
            trace="\n".join(lines)[-TRACE_CHARACTERS:],
            log=str(Path(first.log).relative_to(gathered.paths.root)),
        )


def _provenance(value: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return short facts on the experiment's provenance; long ones stay in the file."""
    command = value.get("argv")
    first = [("command", shlex.join(map(str, command)))] if isinstance(command, list) else []
    first += [
        (f"data {one.get('path')}", f"{one.get('digest')}, {one.get('files')} files")
        for one in value.get("data", ())
        if isinstance(one, dict)
    ]
    flat = _flat({name: item for name, item in value.items() if name != "origins"})
    return (
        first
        + [
            (name, str(item))
            for name, item in sorted(flat.items())
            if isinstance(item, str | int | float)
            and len(str(item)) <= 200
            and "\n" not in str(item)
        ][:60]
    )
