"""A report as data: the sixteen sections of an experiment, in the order of the page."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from hpcdet import __version__
from hpcdet.policy import named_policy
from hpcdet.read.experiment.gather import Gathered
from hpcdet.read.sections import (
    metric_lines,
    origins,
    overview,
    search_story,
    time_spent,
    trial_rows,
    troubles,
)
from hpcdet.read.sections.extent import ReportExtent, cut
from hpcdet.read.sections.metric_lines import CurvesSection
from hpcdet.read.sections.origins import ConfigSection, LineageSection, ReproduceSection
from hpcdet.read.sections.overview import NumbersSection, SummarySection
from hpcdet.read.sections.search_story import SearchSection
from hpcdet.read.sections.time_spent import EfficiencySection, TimelineSection, TimeSection
from hpcdet.read.sections.trial_rows import TrialsSection
from hpcdet.read.sections.troubles import FailuresSection, LogsSection
from hpcdet.read.usage import costs, slot_hours
from hpcdet.read.usage.spans import epoch, spans
from hpcdet.read.views import views
from hpcdet.read.views.checkpoints import CheckpointView
from hpcdet.read.views.trials import AttemptView
from hpcdet.store.folder.records import ExperimentState

if TYPE_CHECKING:  # trials without a policy need nothing of it
    from hpcdet.read.governed.governed_trials import CheckView, GovernanceView
    from hpcdet.read.governed.trained_policies import TrialPolicyChangeView

METHODS = (
    "Everything here was read from the files of the experiment's folder. Times are those of the "
    "nodes' clocks, in UTC.",
    "A slot is one rank; slot-hours are slots times hours. They are divided as by 'hpcdet usage': "
    "starting ends with the first training step; validating, saving and waiting at rungs are what "
    "the ranks recorded; lost and failed are what an interrupted or failed attempt did after its "
    "last checkpoint; without a trial is what workers held besides. These add up to what was held, "
    "by the scheduler's accounting where that has spoken. Waiting for an allocation, which holds "
    "nothing, is the time between the making of a trial, or the end of an attempt, and the next "
    "claim.",
    "In the timeline training includes validation, saving and waiting at rungs, lost includes "
    "failed, and paused is a trial which had done all that was asked of it.",
    "The best value of a trial is the best validation that counts. Where two attempts trained the "
    "same steps, the later one's metrics count; the others are superseded and drawn faintly.",
    "Long curves are reduced to the first, the last, and the extremes of equal stretches. "
    "Smoothing is an exponential moving average over the drawn points, beside the raw line.",
    "Importance is PED-ANOVA (Watanabe et al., IJCAI 2023) as Optuna computes it: how much the "
    "density of a hyperparameter among the best tenth of trials differs from that of all. It says "
    "nothing of values that were never tried, and below 50 trials little at all.",
    "The time of steps is what the ranks measured by their own clocks; waiting for other ranks is "
    "the part of communication that nothing hides. A rank that makes others wait works more than "
    "20 % longer on a step than half of the others.",
)


@dataclass(frozen=True)
class CheckpointsSection:
    """The checkpoints."""

    rows: list[CheckpointView]
    """A row for each, those of the best trials first."""
    left_out: int
    """Checkpoints without a row."""


@dataclass(frozen=True)
class GovernedTrial:
    """A trial under a policy."""

    view: GovernanceView
    """What is known of it."""
    entropies: dict[str, list[float | None]]
    """Values by layer, by what they are entropies of."""
    outside: list[str]
    """Layers whose weights lie out of their band."""
    recorded: list[tuple[str, str]]
    """What else its checkpoint records, by name, in words."""
    checks: dict[int, list[tuple[str, CheckView]]]
    """By attempt; what each looks for, its outcome and what it found."""


@dataclass(frozen=True)
class GovernanceSection:
    """Trials under a policy."""

    trials: list[GovernedTrial]
    """Each trial; none without a policy."""
    changed: list[tuple[TrialPolicyChangeView, str]]
    """What was changed under the policy, and the attempts that began with it."""


@dataclass(frozen=True)
class MethodsSection:
    """How the numbers were made."""

    paragraphs: list[str]
    """In words."""


@dataclass(frozen=True)
class Sections:
    """The sections, in their order."""

    summary: SummarySection
    numbers: NumbersSection
    time: TimeSection
    timeline: TimelineSection
    trials: TrialsSection
    curves: CurvesSection
    search: SearchSection
    efficiency: EfficiencySection
    checkpoints: CheckpointsSection
    lineage: LineageSection
    config: ConfigSection
    failures: FailuresSection
    logs: LogsSection
    governance: GovernanceSection
    reproduce: ReproduceSection
    methods: MethodsSection


NAMES = tuple(one.name for one in fields(Sections))
"""Ids of the sections, in their order."""


@dataclass(frozen=True)
class ReportView:
    """An experiment as of one moment."""

    id: str
    """Its id."""
    name: str
    """Its name in the config."""
    state: ExperimentState
    """Its state."""
    generated: str
    """When the report was made."""
    version: str
    """The version of hpcdet."""
    sections: Sections
    """What is known."""


def report(
    gathered: Gathered, now: float, extent: ReportExtent | None = None, environment: bool = True
) -> ReportView:
    """Return the report of an experiment.

    Args:
        now: epoch seconds at which it is made; what still goes on ends here.
        extent: how much it shows.
        environment: with the variables of the config's ``environment``.
    """
    extent = extent or ReportExtent()
    status = views.status(gathered)
    attempts = [_at(row, now) for row in views.attempts(gathered)]
    until = costs.until(gathered, now)
    found = spans(gathered, until)
    held = slot_hours.pieces(gathered, until)
    hours = slot_hours.added(held, -math.inf, math.inf)
    order = trial_rows.ranking(status)
    rows = trial_rows.section(gathered, status, held, extent)
    telling = {row.trial for row in status.trials if row.state in ("ERROR", "RUNNING")}
    with_spans = sorted({span.trial for span in found})
    shown = time_spent.lanes(with_spans, order, telling, extent.lanes)
    saved = views.checkpoints(gathered)
    spent = costs.spent(gathered, now=now)
    return ReportView(
        id=gathered.id,
        name=gathered.config.name,
        state=status.state,
        generated=datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds")[:19] + "Z",
        version=__version__,
        sections=Sections(
            summary=overview.summary(gathered, status, rows, attempts),
            numbers=overview.numbers(status, attempts, saved, hours, spent),
            time=time_spent.time(gathered, hours, order, extent),
            timeline=time_spent.timeline(gathered, found, attempts, shown, extent),
            trials=rows,
            curves=metric_lines.section(gathered, status, order, extent),
            search=search_story.section(gathered, status, extent),
            efficiency=time_spent.efficiency(gathered, order, extent, now, held),
            checkpoints=_checkpoints(saved, order, extent),
            lineage=origins.lineage(gathered, status),
            config=origins.config(gathered, environment),
            failures=troubles.failures(gathered, attempts),
            logs=troubles.logs(gathered, attempts, rows.best),
            governance=_governance(gathered),
            reproduce=origins.reproduce(gathered, rows.best),
            methods=MethodsSection(list(METHODS)),
        ),
    )


def _at(row: AttemptView, now: float) -> AttemptView:
    """Return an attempt with its duration until ``now`` if it has not ended."""
    if row.end or not row.start:
        return row
    return replace(row, duration_s=round(max(0.0, now - epoch(row.start)), 3))


def _checkpoints(
    saved: Sequence[CheckpointView], order: Sequence[int], extent: ReportExtent
) -> CheckpointsSection:
    place = {trial: n for n, trial in enumerate(order)}
    if len(saved) > extent.rows:
        saved = sorted(saved, key=lambda row: (place.get(row.trial, len(place)), row.trial))
    return CheckpointsSection(*cut(saved, extent.rows))


def _governance(gathered: Gathered) -> GovernanceSection:
    found = list(_governed(gathered))
    return GovernanceSection(found, _changed(found))


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
