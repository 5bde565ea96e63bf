"""The sections ``summary`` and ``numbers``: what a reader wants first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hpcdet import units
from hpcdet.errors import HpcdetError
from hpcdet.read.experiment import series, states
from hpcdet.read.experiment.gather import Gathered
from hpcdet.read.sections import origins
from hpcdet.read.sections.trial_rows import TrialsSection, by_trial
from hpcdet.read.usage.costs import SpentView
from hpcdet.read.usage.slot_hours import SlotHoursView
from hpcdet.read.usage.spans import WELL
from hpcdet.read.views import describe
from hpcdet.read.views.checkpoints import CheckpointView
from hpcdet.read.views.trials import AttemptView
from hpcdet.read.views.views import StatusView
from hpcdet.store.cost.budget import HOUR_S
from hpcdet.store.fs import yaml_bounds

EXPECTED = WELL | {"preempted", "walltime", "canceled", "released", "resized"}
"""Ends of attempts that are no failures."""


@dataclass(frozen=True)
class AnswerView:
    """The best trial."""

    label: str
    """What is best: ``best validation_loss``."""
    value: Any
    """Its value; null while there is none."""
    where: str
    """The trial and step, or why there is none."""
    trial: int | None
    """The trial; null while there is none."""
    hyperparameters: dict[str, Any]
    """Its hyperparameters that differ between trials."""
    margin: float | None
    """How much better it is than the second; null without a second."""
    second: int | None
    """The second; null without one."""
    n: int
    """Trials that have a value."""


@dataclass(frozen=True)
class SummarySection:
    """The summary: question, answer, people and times."""

    question: str
    """The description; "" without one."""
    answer: AnswerView
    """The best trial."""
    project: str
    """``workspace/project``; "" without one."""
    user: str
    """Who made it."""
    created: str
    """When it was made."""
    ended: str
    """When it ended; "" while it goes on."""
    site: str
    """The name of the site file."""
    host: str
    """The host that it was submitted from."""
    commit: str
    """The commit of the code; "" without Git."""
    dirty: bool | None
    """True if the code differed from that commit; null without Git."""
    seed: int | None
    """The seed of the experiment."""
    labels: list[str]
    """Its labels."""
    completeness: list[str]
    """What a reader must know before relying on the report."""


@dataclass(frozen=True)
class NumbersSection:
    """Counts and costs."""

    trials: int
    """Number of trials."""
    states: dict[str, int]
    """Trials by state."""
    spent: SpentView
    """What was spent, and of what budget."""
    useful: float | None
    """Share of it that trained, validated or saved what was kept, 0 to 1."""
    waiting_slot_s: float
    """Slot-seconds waited for allocations."""
    attempts: int
    """Number of attempts."""
    ends: dict[str, int]
    """Attempts by the reason of their end."""
    failed: int
    """Attempts that failed or were lost."""
    checkpoints: int
    """Number of checkpoints."""
    checkpoint_bytes: int
    """Their size."""


def summary(
    gathered: Gathered, status: StatusView, trials: TrialsSection, attempts: Sequence[AttemptView]
) -> SummarySection:
    """Return the section ``summary``."""
    known = gathered.provenance
    git = origins.git(gathered)
    dirty = git.get("dirty")
    raw = gathered.config.raw
    seed = raw.get("reproducibility", {}).get("experiment_seed")
    closed = gathered.closed
    return SummarySection(
        question=status.description,
        answer=_answer(status, trials),
        project=status.project,
        user=status.user,
        created=status.created,
        ended=closed.at if closed is not None else "",
        site=_site(gathered),
        host=str(known.get("host", "")),
        commit=str(git.get("commit") or ""),
        dirty=bool(dirty) if dirty is not None else None,
        seed=seed if isinstance(seed, int) else None,
        labels=status.labels,
        completeness=[*_notes(status, attempts, trials, states.reasons(gathered.paths))],
    )


def _answer(status: StatusView, trials: TrialsSection) -> AnswerView:
    label, where = describe.best(status)
    best = status.best
    row = by_trial(trials).get(best.trial) if best else None
    ranked = [row for row in trials.rows if row.rank is not None]
    second = next((row for row in ranked if best and row.trial != best.trial), None)
    values = [series.number(best.value) if best else None]
    values.append(series.number(second.best) if second else None)
    margin = abs(values[0] - values[1]) if None not in values else None  # type: ignore[operator]
    return AnswerView(
        label=label,
        value=best.value if best else None,
        where=where,
        trial=best.trial if best else None,
        hyperparameters=row.hyperparameters if row else {},
        margin=margin,
        second=second.trial if second else None,
        n=sum(series.number(row.best) is not None for row in status.trials),
    )


def _site(gathered: Gathered) -> str:
    import yaml

    try:
        return str(yaml_bounds.mapping(gathered.paths.site).get("name", ""))
    except (HpcdetError, OSError, ValueError, yaml.YAMLError):
        return ""


def _notes(
    status: StatusView, attempts: Sequence[AttemptView], trials: TrialsSection, waits: str
) -> Iterator[str]:
    if status.state not in states.ENDED:
        yield "The experiment is not over: this is how it stood when the report was made."
    if not attempts:
        yield "Nothing has run yet."
    running = sum(not row.reason for row in attempts)
    if running:
        yield f"{running:,} attempt{'s have' if running > 1 else ' has'} not ended."
    if status.why:
        yield str(status.why)
    if waits and status.state not in states.ENDED:
        yield f"Tasks wait in the queue: {waits}."
    for loss in status.purged:
        yield f"{loss[0].upper()}{loss[1:]}."
    best = by_trial(trials).get(status.best.trial) if status.best else None
    if best is not None and best.state == "ERROR":
        yield f"The best trial, {best.trial}, has failed: its value is of a report before that."
    silent = sum(row.best is None for row in status.trials)
    if silent and len(status.trials) > silent:
        have = "has" if silent == 1 else "have"
        yield f"{silent:,} of {len(status.trials):,} trials {have} no value of {status.metric}."
    if trials.left_out:
        left_out = units.counted(trials.left_out, "trial is", "trials are")
        yield f"{left_out} left out of tables and charts; the best are there."


def numbers(
    status: StatusView,
    attempts: Sequence[AttemptView],
    checkpoints: Sequence[CheckpointView],
    hours: SlotHoursView,
    spent: SpentView,
) -> NumbersSection:
    """Return the section ``numbers``."""
    kept = hours.training + hours.validating + hours.saving
    ends = Counter(row.reason or "running" for row in attempts)
    return NumbersSection(
        trials=len(status.trials),
        states=dict(sorted(Counter(str(row.state) for row in status.trials).items())),
        spent=spent,
        useful=round(kept / hours.allocated, 4) if hours.allocated else None,
        waiting_slot_s=round(hours.queued * HOUR_S, 3),
        attempts=len(attempts),
        ends=dict(sorted(ends.items())),
        failed=sum(n for reason, n in ends.items() if reason not in EXPECTED | {"running"}),
        checkpoints=len(checkpoints),
        checkpoint_bytes=sum(row.bytes or 0 for row in checkpoints),
    )
