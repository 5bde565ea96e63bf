"""Trials, beside each other and one by one, and their attempts."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from hpcdet.read.experiment import series, standings, states
from hpcdet.read.experiment.digests import TrialDigest, digests
from hpcdet.read.experiment.gather import Gathered, GatheredAttempt, GatheredTrial, gather
from hpcdet.read.experiment.standings import Standings
from hpcdet.read.views.list_rows import ComparisonView, LastCheckpointView, TrialStatusView
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Reason
from hpcdet.store.fs import files, packed


@dataclass(frozen=True)
class BestView:
    """The best trial."""

    trial: int
    """Its number."""
    value: Any
    """Its value of the first objective."""
    step: int
    """Batches trained at that report."""


@dataclass(frozen=True)
class RankedView:
    """A trial on the front, or the nearest to it."""

    trial: int
    """Its number."""
    step: int
    """Batches trained at the report by which it is compared."""
    compared: ComparisonView
    """Its values."""


@dataclass(frozen=True)
class AttemptView:
    """An attempt of a trial."""

    id: str
    """``ID/3.2``: the trial's id and the attempt's number."""
    trial: int
    """The trial's number."""
    attempt: int
    """Its number, from 1."""
    job: str
    """The scheduler's id of its job."""
    worker: str
    """The worker that ran it."""
    host: str
    """The host of that worker."""
    nodes: list[str]
    """The nodes it ran on."""
    start: str
    """When it was claimed."""
    end: str
    """When it ended; "" while it runs."""
    reason: Reason | Literal[""]
    """Why it ended; "" while it runs."""
    steps: int | None
    """Batches the trial had trained at its end, or now; null if it never began."""
    from_step: int | None
    """Batches at which it began."""
    checkpoint: str
    """The checkpoint from which it went on; "" for none."""
    world: int | None
    """Number of its ranks."""
    exit_code: int | None
    """Exit code of its launcher."""
    error: str
    """The error that ended it; "" without one."""
    duration_s: float | None
    """Seconds from start to end, or so far."""
    last_heard: str
    """Time of the last line in its journal."""
    log: str
    """File with the output of rank 0."""
    traces: list[str]
    """Files that torch's profiler recorded, one for each rank."""
    log_policies: list[str]
    """Names of the log policies that fit its output."""


@dataclass(frozen=True)
class FingerprintView:
    """An environment that attempts ran in."""

    digest: str
    """Its digest, which the journals of attempts name."""
    attempts: list[str]
    """The attempts that ran in it, as ``3.2``: trial and attempt."""
    parts: dict[str, str]
    """What bits depend on: processor, BLAS, threads, torch's switches, ``$VARIABLES``, versions."""
    threads: dict[str, int]
    """What the node allowed: its ``cores``, torch's ``interop`` threads, those of each BLAS."""
    packages: dict[str, str]
    """Version of every package by name."""


def trials(source: ExperimentPaths | Gathered) -> list[TrialStatusView]:
    """Return every trial."""
    gathered = gather(source)
    return compared(gathered, standings.standings(gathered), digests(gathered))


def compared(
    gathered: Gathered, stand: Standings | None, found: Sequence[TrialDigest]
) -> list[TrialStatusView]:
    """Return every trial of these digests, by the standings of the experiment."""
    state, _ = states.experiment_state(gathered)
    over = state if state in states.ENDED else ""
    metric = gathered.config.searcher.metric
    return [_trial(gathered.id, each, over, stand, metric) for each in found]


def comparison(stand: Standings, trial: int) -> ComparisonView:
    """Return a trial beside the others, by the report by which it is compared."""
    report = stand.at.get(trial)
    constraints = stand.goals.constraints
    metrics = report.metrics if report else {}
    return ComparisonView(
        report.standing.feasible if report and constraints else None,
        report.standing.violation if report and constraints else None,
        {one.metric: metrics.get(one.metric) for one in stand.goals.objectives},
        {one.metric: metrics.get(one.metric) for one in constraints},
        trial in stand.front,
    )


def best_trial(rows: list[TrialStatusView], smaller_is_better: bool) -> BestView | None:
    """Return the trial with the best value; None if none has one."""
    values = ((series.number(row.best), row) for row in rows)
    ordered = [
        BestView(row.trial, value, row.best_step)
        for value, row in values
        if value is not None and row.best_step is not None
    ]
    pick = min if smaller_is_better else max
    return pick(ordered, key=lambda one: one.value, default=None)


def leader(stand: Standings) -> BestView | None:
    """Return the best feasible trial, by the first objective, at the compared length."""
    if not stand.front:
        return None
    trial = stand.front[0]
    report, metric = stand.at[trial], stand.goals.objectives[0].metric
    return BestView(trial, report.metrics[metric], report.step)


def nearest(stand: Standings) -> RankedView | None:
    """Return the trial that violates least; None where one is feasible, or none is known."""
    violations = {
        trial: report.standing.violation
        for trial, report in stand.at.items()
        if report.standing.violation and report.standing.losses is not None
    }
    if stand.front or not violations:
        return None
    return ranked(stand, min(violations, key=lambda trial: (violations[trial] or 0.0, trial)))


def ranked(stand: Standings, trial: int) -> RankedView:
    """Return a trial with the values by which it is compared."""
    return RankedView(trial, stand.at[trial].step, comparison(stand, trial))


def _trial(
    id: str, digest: TrialDigest, over: str, stand: Standings | None, metric: str
) -> TrialStatusView:
    known = dict(vars(digest))
    del known["not_finite"], known["runs"]
    known["state"] = states.at_end(digest.state, over)
    if stand is not None:
        report = stand.best.get(digest.trial)
        known["best"] = report.metrics[metric] if report else None
        known["best_step"] = report.step if report else None
        known["compared"] = comparison(stand, digest.trial)
    if digest.last_checkpoint is not None:
        known["last_checkpoint"] = LastCheckpointView(*digest.last_checkpoint)
    return TrialStatusView(id=f"{id}/{digest.trial}", **known)


def attempts(source: ExperimentPaths | Gathered, trial: int = 0) -> list[AttemptView]:
    """Return every attempt of one trial, or of all of them."""
    gathered = gather(source)
    rows = [row for each in gathered.chosen(trial) for row in _attempts(gathered, each)]
    if not gathered.config.profiling.enabled:
        return rows
    # they are large, and people remove them, which no file that is watched shows
    return [dataclasses.replace(row, traces=_traces(gathered.paths, row)) for row in rows]


def _attempts(gathered: Gathered, trial: GatheredTrial) -> list[AttemptView]:
    return trial.derive("attempts", lambda: [_attempt(gathered, one) for one in trial.attempts])


def _attempt(gathered: Gathered, attempt: GatheredAttempt) -> AttemptView:
    claim, end = attempt.claim, attempt.end
    begin = next(attempt.of_kind("start"), {})
    started, ended = claim.at if claim else "", end.at if end else ""
    return AttemptView(
        id=f"{gathered.id}/{attempt.paths.trial}.{attempt.number}",
        trial=attempt.paths.trial,
        attempt=attempt.number,
        job=claim.job if claim else "",
        worker=claim.worker if claim else "",
        host=claim.host if claim else "",
        nodes=(end.nodes if end else []) or (claim.nodes if claim else []),
        start=started,
        end=ended,
        reason=end.reason if end else "",
        steps=attempt.position,
        from_step=begin.get("batches"),
        checkpoint=begin.get("checkpoint", ""),
        world=begin.get("world"),
        exit_code=end.exit_code if end else None,
        error=(end.error if end else "") or (attempt.verdict.error if attempt.verdict else ""),
        duration_s=seconds(started, ended),
        last_heard=attempt.heard,
        log=packed.where(attempt.paths.log(0)),
        traces=[],
        log_policies=list(end.policies) if end else [],
    )


def fingerprints(source: ExperimentPaths | Gathered, trial: int = 0) -> list[FingerprintView]:
    """Return every environment of which there is a record, by its first attempt.

    Args:
        trial: only attempts of this one; 0: of all.
    """
    gathered = gather(source)
    found: dict[str, list[str]] = {}
    for attempt in (attempt for each in gathered.chosen(trial) for attempt in each.attempts):
        digest = str(next(attempt.of_kind("start"), {}).get("fingerprint", ""))
        if digest.isalnum():
            found.setdefault(digest, []).append(f"{attempt.paths.trial}.{attempt.number}")
    views = []
    for digest, names in found.items():
        whole = files.read_json(gathered.paths.fingerprint(digest))
        if isinstance(whole, dict):  # older versions left none
            known = [whole.get(name, {}) for name in ("parts", "threads", "packages")]
            views.append(FingerprintView(digest, names, *known))
    return views


def _traces(paths: ExperimentPaths, row: AttemptView) -> list[str]:
    folder = paths.trial(row.trial).attempt(row.attempt).traces
    return [packed.where(folder / name) for name in sorted(packed.names(folder))]


def seconds(start: str, end: str) -> float | None:
    """Return the seconds between two ISO times; to now if ``end`` is ""; None if ``start`` is."""
    if not start:
        return None
    finish = datetime.fromisoformat(end).timestamp() if end else time.time()
    return round(max(0.0, finish - datetime.fromisoformat(start).timestamp()), 3)
