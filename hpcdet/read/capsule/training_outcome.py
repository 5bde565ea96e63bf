"""Outcomes of trials, step by step, and their comparison bit by bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hpcdet.read.capsule.factors import Factor
from hpcdet.read.experiment import series, timing
from hpcdet.read.experiment.gather import Gathered, GatheredTrial, gather
from hpcdet.read.views import checkpoints
from hpcdet.store.folder.layout import ExperimentPaths


@dataclass(frozen=True)
class Outcome:
    """The outcome of a training.

    Attributes:
        metric: the name of the searcher's metric.
        values: its value in each validation, by step.
        saved: digests of all checkpoints that were made, by step.
        kept: those of them that are still there.
        step_s: seconds of a step, without validations and checkpoints; None if not measured.
    """

    metric: str
    values: Mapping[int, Any] = field(default_factory=dict)
    saved: Mapping[int, str] = field(default_factory=dict)
    kept: Mapping[int, str] = field(default_factory=dict)
    step_s: float | None = None

    @property
    def value(self) -> float | None:
        """The metric in the last validation; None without one, or if it is no number."""
        return self.at(max(self.values)) if self.values else None

    def at(self, step: int) -> float | None:
        """The metric in the validation at a step; None without one, or if it is no number."""
        return series.number(self.values[step]) if step in self.values else None


@dataclass(frozen=True)
class RepeatedCheckpointView:
    """A checkpoint that is kept, and what the repetition had at its step."""

    step: int
    """Batches trained."""
    then: str
    """Digest of the training state."""
    now: str
    """Digest of the repetition's; "" if it made no checkpoint at this step."""
    same: bool | None
    """Whether they are the same; null where there is nothing to compare."""


@dataclass(frozen=True)
class RepeatedView:
    """A run that was repeated from its capsule."""

    id: str
    """The experiment that repeats it."""
    of: str
    """The trial, as ``ID/3``."""
    same: bool
    """Whether all bits are the same: of each checkpoint compared, and of each value."""
    metric: str
    """The searcher's metric."""
    then: float | None
    """Its last value; null if it is no number."""
    now: float | None
    """That of the repetition at the same step; null if it has none."""
    checkpoints: list[RepeatedCheckpointView]
    """Every kept checkpoint."""
    then_step_s: float | None
    """Seconds of a step, without validations and checkpoints; null if not measured."""
    now_step_s: float | None
    """The same of the repetition."""
    installed: list[str]
    """Packages that were installed for it."""
    unrestored: list[str]
    """What is not as it was, each with why."""


@dataclass(frozen=True)
class AblationView:
    """A row of the table: a run, and how far it is from the one that is repeated."""

    run: Literal["then", "now", Factor]
    """``then``: as it was recorded; ``now``: as it would be submitted now; else the factor that is
    restored in this run, besides those in the rows above."""
    id: str
    """The experiment."""
    metric: str
    """The searcher's metric."""
    value: float | None
    """Its last value; null if it is no number."""
    difference: float | None
    """From the baseline, ``then``, in the metric's own unit."""
    same: bool | None
    """Whether all bits are those of ``then``; null where no checkpoint can be compared."""
    step_s: float | None
    """Seconds of a step, without validations and checkpoints; null if not measured."""
    names: list[str]
    """The files, keys and packages that are restored."""
    unrestored: list[str]
    """What is not as it was, each with why."""


def repeated(
    id: str, of: str, then: Outcome, now: Outcome, installed: Sequence[str], lacking: Sequence[str]
) -> RepeatedView:
    """Return the comparison of a run with its repetition."""
    return RepeatedView(
        id=id,
        of=of,
        same=same_bits(then, now),
        metric=then.metric,
        then=then.value,
        now=now.at(max(then.values)) if then.values else now.value,
        checkpoints=compared(then, now),
        then_step_s=then.step_s,
        now_step_s=now.step_s,
        installed=list(installed),
        unrestored=list(lacking),
    )


def row(
    run: Literal["then", "now", Factor],
    id: str,
    then: Outcome,
    now: Outcome,
    names: Sequence[str] = (),
    lacking: Sequence[str] = (),
) -> AblationView:
    """Return a row of the table of an ablation."""
    known = then.value is not None and now.value is not None
    compares = any(one.same is not None for one in compared(then, now))
    return AblationView(
        run=run,
        id=id,
        metric=then.metric,
        value=now.value,
        difference=now.value - then.value if known else None,  # type: ignore[operator]
        same=same_bits(then, now) if compares else None,
        step_s=now.step_s,
        names=list(names),
        unrestored=list(lacking),
    )


def of_experiment(paths: ExperimentPaths, metric: str) -> Outcome:
    """Return what a repetition came to: an experiment of one training."""
    gathered = gather(paths)
    return of_trials(gathered, list(gathered.trials), metric)


def of_trials(gathered: Gathered, trials: list[GatheredTrial], metric: str) -> Outcome:
    """Return what some trials, each going on from the one before, came to."""
    values: dict[int, Any] = {}
    saved: dict[int, str] = {}
    kept: dict[int, str] = {}
    for trial in trials:
        values |= {step: value for step, _, value in trial.validations(metric)}
        for row in checkpoints.checkpoints(gathered, trial.number, deleted=True):
            if row.step is not None and row.digest and row.state in ("complete", "deleted"):
                saved[row.step] = row.digest
                if row.state == "complete":
                    kept[row.step] = row.digest
    walls = [timing.wall(trial) for trial in trials]
    steps = sum(one.steps for one in walls)
    step_s = sum(one.training_s for one in walls) / steps if steps else None
    return Outcome(metric, values, saved, kept, step_s)


def compared(then: Outcome, now: Outcome) -> list[RepeatedCheckpointView]:
    """Return each kept checkpoint of ``then`` beside that of ``now`` at the same step."""
    rows = []
    for step, digest in sorted(then.kept.items()):
        other = now.saved.get(step, "")
        rows.append(RepeatedCheckpointView(step, digest, other, digest == other if other else None))
    return rows


def same_bits(then: Outcome, now: Outcome) -> bool:
    """True if every kept checkpoint that can be compared, and every value, is the same.

    At least one checkpoint has to be: values alone may agree by chance. How far ``now`` went
    beyond the end of ``then`` does not matter.
    """
    rows = [row.same for row in compared(then, now) if row.same is not None]
    values = all(now.values.get(step) == value for step, value in then.values.items())
    return bool(rows) and all(rows) and values
