"""An experiment as the verbs print it: its row in a list, its status, and all that is known.

Every view takes the experiment's paths, or a ``Gathered`` for several views of one reading.
Times are ISO 8601 UTC or "", lengths are batches, sizes bytes, durations seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from hpcdet.read.experiment import changes, standings, states
from hpcdet.read.experiment.changes import Change, NoteView
from hpcdet.read.experiment.digests import digests
from hpcdet.read.experiment.gather import Gathered, gather
from hpcdet.read.experiment.series import metrics
from hpcdet.read.usage import costs
from hpcdet.read.usage.costs import AllocationView, SpentView
from hpcdet.read.views.brief import brief, created, owner, project, user
from hpcdet.read.views.checkpoints import CheckpointView, checkpoints, purged
from hpcdet.read.views.items import OPTIONAL
from hpcdet.read.views.list_rows import ExperimentView, TrialStatusView
from hpcdet.read.views.timeline import events
from hpcdet.read.views.trials import (
    AttemptView,
    BestView,
    FingerprintView,
    RankedView,
    attempts,
    best_trial,
    compared,
    fingerprints,
    leader,
    nearest,
    ranked,
    trials,
)
from hpcdet.read.views.unsent import UnsentView, unsent
from hpcdet.store.folder import home, scratch
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import ExperimentState, Submitted, TrialState
from hpcdet.store.objects import copy_records
from hpcdet.units import Length

__all__ = [
    "ExperimentView",
    "Gathered",
    "attempts",
    "brief",
    "checkpoints",
    "events",
    "gather",
    "metrics",
    "show",
    "status",
    "trials",
]

Source = ExperimentPaths | Gathered


@dataclass(frozen=True)
class WaitView:
    """Why tasks wait in the queue, by the scheduler's last answer."""

    kind: str
    """Kind of the reason; "" for one that needs nothing done."""
    long: bool
    """True if it has waited longer than usual."""
    reason: str
    """The scheduler's word for it."""
    since: str
    """Since when."""
    tasks: int
    """Number of tasks."""


@dataclass(frozen=True)
class NotFiniteView:
    """NaN or infinity in the newest attempt of a trial."""

    trial: int
    """The trial's number."""
    group: str
    """Group of the metrics."""
    step: int
    """Batches trained when it was first reported."""
    names: list[str]
    """Names of the metrics."""


@dataclass(frozen=True)
class StatusView:
    """The overview of an experiment."""

    id: str
    """Its id: the name of its folder."""
    name: str
    """Its name in the config."""
    state: ExperimentState
    """Its state."""
    why: str
    """The reason of its state; "" if none is recorded."""
    stuck: bool
    """True if it is paused because of a failure, not by its user."""
    next: str
    """The command that resumes it then, else ""."""
    health: Literal["ok", "queued", "blind", "stalled"]
    """``ok``: workers live, or nothing is left to do. ``queued``: jobs wait in the queue, or
    for a limit. ``blind``: the process that decides cannot reach the scheduler. ``stalled``: no
    process is left that could go on."""
    health_why: str
    """The reason of that; "" for ``ok``."""
    last_turn_s: float | None
    """Age of the last sign of the process that decides, in seconds; null if there never was one."""
    waits: list[WaitView]
    """Why tasks wait in the queue."""
    searcher: str
    """The search method."""
    metric: str
    """The metric that it looks at: the first objective."""
    smaller_is_better: bool
    """True if smaller values of it are better."""
    best: BestView | None
    """The best trial, with constraints a feasible one; null before any has a value."""
    objectives: list[str]
    """Metrics of all objectives."""
    seed: int
    """Seed of everything random in it: ``reproducibility.experiment_seed``."""
    compared_at: int | None
    """Length at which trials are compared, in the search's unit; null without rungs."""
    front: list[RankedView]
    """With constraints or several objectives: feasible trials that no feasible one beats in all
    objectives, the best first objective first."""
    nearest: RankedView | None
    """The trial that violates constraints least, where none is feasible."""
    max_length: Length | None
    """The length of a whole training."""
    max_trials: int
    """Number of trials that the search may make."""
    created: str
    """When it was made."""
    workers: int
    """Number of workers that have not ended."""
    paused_bytes: int | None
    """Size of the checkpoints of paused trials; null without a limit on it."""
    max_paused_bytes: int | None
    """That limit: ``checkpoint_storage.max_paused_bytes``."""
    description: str
    """Its description; "" without one."""
    project: str
    """``workspace/project``; "" without one."""
    user: str
    """Who made it."""
    owner: str
    """The user that its folder belongs to."""
    not_copied: str
    """Why something is not in its object store yet; "" for nothing, or without one."""
    labels: list[str]
    """Its labels."""
    path: str
    """Its folder."""
    spent: SpentView
    """Its cost so far."""
    purged: list[str]
    """What a purge of scratch took, for people."""
    unsent: list[UnsentView]
    """Messages that wait to be sent (``notify.webhook``, ``notify.email``)."""
    not_finite: list[NotFiniteView]
    """Trials whose newest attempt reported NaN or infinity."""
    trials: list[TrialStatusView]
    """Its trials, by number."""

    def states(self) -> dict[int, TrialState]:
        """Return the state of the experiment, as 0, and those of its trials by their numbers."""
        return {0: self.state, **{trial.trial: trial.state for trial in self.trials}}


@dataclass(frozen=True)
class JobView:
    """A submission to the scheduler."""

    number: int
    """Its number, from 1."""
    name: str
    """The name of the job."""
    job: str
    """The scheduler's id; "" if it is not submitted, or was refused."""
    scheduler: str
    """The scheduler; "" before it is submitted."""
    tasks: int
    """Number of its tasks."""
    throttle: int
    """Tasks that may run at once."""
    spares: int
    """Of the tasks, spare ones."""
    hold: bool
    """True if it is prepared only, to be submitted by hand."""
    script: str
    """The job script."""
    at: str
    """When it was submitted, or prepared."""
    error: str
    """Why the scheduler refused it; "" if it did not."""


@dataclass(frozen=True)
class FilesView:
    """Files and folders of an experiment."""

    code: str
    """The snapshot of the code."""
    config: str
    """The resolved config."""
    site: str
    """The resolved site."""
    scratch: str | None = field(default=None, metadata=OPTIONAL)
    """Its folder on scratch, if it has one."""
    traces: list[str] | None = field(default=None, metadata=OPTIONAL)
    """Files of torch's profiler, if there are any."""


@dataclass(frozen=True)
class ShowView(StatusView):
    """Everything known of an experiment."""

    config: dict[str, Any]
    """What holds now: the submitted config with ``changes`` laid over it."""
    changes: list[Change]
    """Changes of the config since its submission, by key."""
    notes: list[NoteView]
    """Notes that people have written on it, oldest first."""
    attempts: list[AttemptView]
    """Attempts, by trial and number."""
    jobs: list[JobView]
    """Submissions."""
    allocations: list[AllocationView]
    """Allocations and their cost, by start."""
    checkpoints: list[CheckpointView]
    """Checkpoints, by trial and step."""
    fingerprints: list[FingerprintView]
    """Environments that attempts ran in, each once; those of older versions are not known."""
    provenance: dict[str, Any]
    """Where it came from: versions, code, command, host, user."""
    files: FilesView
    """Its files."""


def next_command(gathered: Gathered) -> str:
    """Return the command that resumes a paused experiment."""
    key = costs.exhausted(gathered)
    if key:
        return f"hpcdet set {home.called(gathered.paths)} {key}=MORE"
    return states.resuming(gathered)


def status(source: Source) -> StatusView:
    """Return the overview of an experiment."""
    gathered = gather(source)
    state, why = states.experiment_state(gathered)
    keepers, stuck = states.health(gathered), states.stuck(gathered)
    searcher = gathered.config.searcher
    stand = standings.standings(gathered)
    found = digests(gathered)
    rows = compared(gathered, stand, found)
    return StatusView(
        id=gathered.id,
        name=gathered.config.name,
        state=state,
        why=why,
        stuck=stuck,
        next=next_command(gathered) if stuck else "",
        health=keepers["health"],
        health_why=keepers["why"],
        last_turn_s=keepers["last_turn_s"],
        waits=[
            WaitView(one["kind"], one["long"], one["reason"], one["since"], one["tasks"])
            for one in states.waits(gathered.paths)
        ],
        searcher=searcher.name,
        metric=searcher.metric,
        smaller_is_better=searcher.smaller_is_better,
        best=leader(stand) if stand else best_trial(rows, searcher.smaller_is_better),
        objectives=[one.metric for one in searcher.goals.objectives],
        seed=gathered.config.reproducibility.experiment_seed,
        compared_at=stand.length if stand else None,
        front=[ranked(stand, trial) for trial in stand.front] if stand else [],
        nearest=nearest(stand) if stand else None,
        max_length=searcher.max_length,
        max_trials=searcher.max_trials,
        created=created(gathered),
        workers=sum(worker.end is None for worker in gathered.workers),
        paused_bytes=_paused_bytes(gathered, rows),
        max_paused_bytes=gathered.config.checkpoint_storage.max_paused_bytes,
        description=gathered.config.description,
        project=project(gathered),
        user=user(gathered),
        owner=owner(gathered),
        not_copied=copy_records.state(gathered.paths).why,
        labels=changes.labels(gathered),
        path=str(gathered.paths.root),
        spent=costs.spent(gathered),
        purged=purged(gathered),
        unsent=unsent(gathered.paths),
        not_finite=[
            NotFiniteView(one.trial, *one.not_finite) for one in found if one.not_finite is not None
        ],
        trials=rows,
    )


def _paused_bytes(gathered: Gathered, rows: list[TrialStatusView]) -> int | None:
    """Return the bytes of paused trials' checkpoints; None without ``max_paused_bytes``."""
    if gathered.config.checkpoint_storage.max_paused_bytes is None:
        return None
    paused = [row.trial for row in rows if row.state == "PAUSED"]
    held = (one for number in paused for one in checkpoints(gathered, number))
    return sum(int(one.bytes) for one in held if one.state == "complete")


def show(source: Source) -> ShowView:
    """Return ``status`` and everything else that is known of the experiment."""
    gathered = gather(source)
    every = attempts(gathered)
    folder = scratch.target(gathered.paths)
    return ShowView(
        **vars(status(gathered)),
        config=dict(changes.effective(gathered).raw),
        changes=changes.changes(gathered),
        notes=changes.notes(gathered),
        attempts=every,
        jobs=jobs(gathered),
        allocations=costs.allocations(gathered),
        checkpoints=checkpoints(gathered),
        fingerprints=fingerprints(gathered),
        provenance=gathered.provenance,
        files=FilesView(
            code=str(gathered.paths.code),
            config=str(gathered.paths.config),
            site=str(gathered.paths.site),
            scratch=str(folder) if folder is not None else None,
            traces=[file for row in every for file in row.traces] or None,
        ),
    )


def jobs(source: Source) -> list[JobView]:
    """Return all submissions."""
    gathered = gather(source)
    changed = {d["job"]: d["running"] for d in gathered.decisions if d["kind"] == "throttle"}
    return [
        JobView(
            number=job.number,
            name=job.intent.name,
            job=sent.job,
            scheduler=sent.scheduler,
            tasks=job.intent.tasks,
            throttle=changed.get(sent.job, job.intent.throttle),
            spares=job.intent.spares,
            hold=job.intent.hold,
            script=str(gathered.paths.script(job.number)),
            at=(job.submitted or job.intent).at,
            error=sent.error,
        )
        for job in gathered.jobs
        for sent in [job.submitted or Submitted("")]
    ]
