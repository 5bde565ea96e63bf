"""Which checkpoints are kept, decided from their manifests alone, while the experiment runs.

Two rules, side by side. *Kept* checkpoints (those that a policy, a period or the end of the
trial asked for) follow Determined's three numbers: the best of the experiment, the best and
the latest of each trial, their union. *Resume* checkpoints (by time, or on a notice) only
rotate: whatever their kind, the newest ones of a trial are kept, so that it can go on.

A member of a population also keeps what others may be copied from (``donations``).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hpcdet.checkpoint.format import manifest as manifests
from hpcdet.checkpoint.format import remove
from hpcdet.checkpoint.format.manifest import Manifest
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.fs.json_record import value
from hpcdet.store.trials import pins
from hpcdet.store.trials.standing import standing
from hpcdet.units import Length

Key = tuple[int, str]
"""Trial and name of a checkpoint."""

RESUME = 2
"""How many of the newest checkpoints a trial needs that may still go on: one may be damaged."""

DONATIONS = 4
"""How many of the newest at its intervals a member of a population keeps: it may be so many ahead
of what the search has heard when that decides who begins from it."""


@dataclass(frozen=True)
class Candidate:
    """A committed checkpoint, as far as retention is concerned.

    Attributes:
        metric: the searcher's metric at this very step; None if it was not validated here.
        resume: it is a resume checkpoint: the three numbers do not see it.
    """

    trial: int
    name: str
    metric: float | None = None
    resume: bool = False

    @property
    def key(self) -> Key:
        return self.trial, self.name

    @staticmethod
    def of(trial: int, manifest: Manifest) -> Candidate:
        """The checkpoint of a manifest; ``meta`` has ``metric`` and ``kind``."""
        metric = manifest.meta.get("metric")
        return Candidate(
            trial,
            manifest.name,
            None if metric is None else value(metric),
            manifest.meta.get("kind") == "resume",
        )


@dataclass(frozen=True)
class RetentionRules:
    """``save_experiment_best``, ``save_trial_best``, ``save_trial_latest``."""

    experiment_best: int = 0
    trial_best: int = 1
    trial_latest: int = 1
    smaller_is_better: bool = True

    @staticmethod
    def of(config: Resolved) -> RetentionRules:
        storage = config.checkpoint_storage
        return RetentionRules(
            storage.save_experiment_best,
            storage.save_trial_best,
            storage.save_trial_latest,
            config.searcher.smaller_is_better,
        )


def keep(
    candidates: Iterable[Candidate],
    policy: RetentionRules,
    resume: Mapping[int, int] | int = 0,
    protected: Collection[Key] = (),
) -> dict[Key, list[str]]:
    """Choose the checkpoints to keep, each with its reasons.

    A pure function. Only validated checkpoints can be best; of equal ones the older wins, and
    NaN never does.

    Args:
        resume: how many of the newest checkpoints of each trial (of all, or by trial) are
            kept so that it can go on.
        protected: kept whatever the rules say, e.g. what another trial began from.
    """
    by_trial: dict[int, list[Candidate]] = defaultdict(list)
    for candidate in sorted(candidates, key=_age):
        by_trial[candidate.trial].append(candidate)
    reasons: dict[Key, list[str]] = {}

    def because(why: str, chosen: Iterable[Candidate]) -> None:
        for candidate in chosen:
            reasons.setdefault(candidate.key, []).append(why)

    everything = [candidate for own in by_trial.values() for candidate in own]
    because("experiment best", _best(everything, policy.experiment_best, policy))
    for trial, own in by_trial.items():
        seen = [candidate for candidate in own if not candidate.resume]
        because("trial best", _best(own, policy.trial_best, policy))
        because("trial latest", _last(seen, policy.trial_latest))
        number = resume if isinstance(resume, int) else resume.get(trial, RESUME)
        because("resume", _last(own, number))
    because("protected", (c for c in everything if c.key in protected))
    return reasons


def _age(candidate: Candidate) -> tuple[int, int, int]:
    return (*manifests.position(candidate.name), candidate.trial)


def _best(candidates: Iterable[Candidate], number: int, policy: RetentionRules) -> list[Candidate]:
    sign = 1 if policy.smaller_is_better else -1
    ranked = [
        (sign * c.metric, c)
        for c in candidates
        if not c.resume and c.metric is not None and math.isfinite(c.metric)
    ]
    return [c for _, c in sorted(ranked, key=lambda pair: (pair[0], _age(pair[1])))[:number]]


def _last(candidates: Sequence[Candidate], number: int) -> Sequence[Candidate]:
    return candidates[max(0, len(candidates) - number) :]


def superseded(
    experiment: ExperimentPaths,
    policy: RetentionRules,
    trials: Sequence[TrialPaths],
    resume: Mapping[int, int] | int = RESUME,
    protected: Collection[Key] = (),
) -> list[Key]:
    """The committed checkpoints of these trials that the rules do not keep, oldest first."""
    candidates = existing(experiment, policy, trials)
    kept = keep(candidates, policy, resume, {*protected, *pinned(trials)})
    numbers = {trial.number for trial in trials}
    doomed = [c for c in candidates if c.trial in numbers and c.key not in kept]
    return [candidate.key for candidate in sorted(doomed, key=_age)]


def pinned(trials: Iterable[TrialPaths]) -> set[Key]:
    """The checkpoints of these trials that users have pinned."""
    return {(trial.number, name) for trial in trials for name in pins.pinned(trial)}


def existing(
    experiment: ExperimentPaths, policy: RetentionRules, trials: Sequence[TrialPaths]
) -> list[Candidate]:
    """The committed checkpoints that count for these trials, wherever they lie."""
    there = experiment.trials() if policy.experiment_best else trials
    return [
        Candidate.of(trial.number, manifest)
        for trial in there
        for manifest in manifests.committed(*trial.checkpoint_places)
    ]


def donations(trial: TrialPaths, interval: Length) -> set[Key]:
    """The newest checkpoints of a member at the lengths where a population is compared.

    Of several at one length (in epochs) the first, and of that the newest attempt's.

    Args:
        interval: between two comparisons.
    """
    found: dict[int, Key] = {}
    ordered = manifests.committed(*trial.checkpoint_places)
    for manifest in sorted(ordered, key=lambda each: (each.step, -each.attempt)):
        batches = interval.unit == "batches"
        at = manifest.step if batches else int(manifest.meta.get(interval.unit, 0))
        if at and at % interval.value == 0:
            found.setdefault(at, (trial.number, manifest.name))
    return {found[at] for at in sorted(found)[-DONATIONS:]}


def sweep(
    experiment: ExperimentPaths,
    policy: RetentionRules,
    trial: int,
    attempt: int,
    resume: int = RESUME,
    interval: Length | None = None,
) -> list[str]:
    """Remove what the rules do not keep of one trial, and what was never committed.

    Called by the one process that writes this trial's checkpoints, right after it has
    committed one and while it writes none. A crash at any point leaves nothing half removed
    that would pass for a checkpoint; the next sweep goes on.

    Where the experiment's best are kept, a new best one drives out those of other trials. The
    trials that have ended, and so have no writer, are swept on the way; their newest
    checkpoint stays, so that they can be continued.

    Copies on project storage count as candidates, and stay: ``safekeeping`` sweeps those.

    Args:
        attempt: the caller's; folders of it and of those before that have no manifest are
            leftovers.
        interval: between two comparisons of a population: ``donations`` stay; None: nobody
            is to begin from this trial.

    Returns:
        Names of the checkpoints of this trial that were removed.
    """
    paths = experiment.trial(trial)
    others = ended(experiment) if policy.experiment_best else ()
    left = {**dict.fromkeys(others, 1), trial: resume}
    swept = [paths, *(experiment.trial(number) for number in others if number != trial)]
    folders = {one.number: one.checkpoints for one in swept}
    protected: set[Key] = set()
    if interval is not None:
        came = (number for number in others if standing(experiment.trial(number)).state == "done")
        members = (experiment.trial(number) for number in (trial, *came))
        protected = {key for member in members for key in donations(member, interval)}
    doomed = [
        (number, name)
        for number, name in superseded(experiment, policy, swept, left, protected)
        if manifests.is_committed(folders[number] / name)
    ]
    for number, name in doomed:
        remove.folder(folders[number] / name)
    remove.leftovers(paths.checkpoints, attempt)
    own = [name for number, name in doomed if number == trial]
    return [name for name in own if not manifests.is_committed(paths.checkpoints / name)]


def ended(experiment: ExperimentPaths) -> list[int]:
    """Trials that no worker trains and that have nothing left to do."""
    return [t.number for t in experiment.trials() if standing(t).state in ("done", "stopped")]
