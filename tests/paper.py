"""A scheduler and workers on paper, for tests of control without processes.

``PaperScheduler`` keeps jobs in memory and answers as the test has scripted; ``Player`` plays
the workers by writing the files that a real one writes.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcdet.control.leader.leader import Hands, Holder
from hpcdet.errors import Unavailable
from hpcdet.schedulers.common.base import (
    Capabilities,
    Job,
    Refusal,
    Submission,
    SubmissionRefused,
    Task,
    TaskState,
    Usage,
)
from hpcdet.schedulers.slurm.answers import slurm_waits
from hpcdet.search.api import events
from hpcdet.site.models import Site
from hpcdet.store.config import resolved_config
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.decisions import wakeup
from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Claim, End, Intent, Reason, Verdict, WorkerClaim, WorkerEnd
from hpcdet.store.folder.worker_paths import WorkerPaths
from hpcdet.store.fs import files, journal, sealed_json
from hpcdet.store.trials.controls import in_force
from hpcdet.store.trials.standing import MANIFEST, standing
from hpcdet.units import Length


@dataclass
class PaperJob:
    submission: Submission
    states: list[TaskState]
    restarts: list[int]


@dataclass
class PaperScheduler:
    """Jobs on paper.

    ``refuse`` is asked before each submission, ``down`` makes it Unavailable, ``stale`` makes it
    repeat its last answer. ``granted``: nodes of a task or of all of a job; ``exits``: of a job.
    """

    name: str = "paper"
    jobs: dict[str, PaperJob] = field(default_factory=dict)
    refuse: Callable[[Submission], Refusal | None] = lambda _: None
    able: Capabilities = field(default_factory=lambda: Capabilities(max_array_tasks=1000))
    down: bool = False
    queries: int = 0
    answered_at: float = 0.0
    stale: bool = False
    answer: dict[str, list[Task]] = field(default_factory=dict)
    effect: Callable[[], None] = lambda: None
    throttled: list[tuple[str, int]] = field(default_factory=list)
    held: dict[str, bool] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    used: dict[str, list[Usage]] = field(default_factory=dict)
    granted: dict[str, tuple[str, ...]] = field(default_factory=dict)
    exits: dict[str, int] = field(default_factory=dict)

    def submit(self, submission: Submission) -> str:
        self._answer()
        if (refusal := self.refuse(submission)) is not None:
            raise SubmissionRefused(refusal)
        job = str(len(self.jobs) + 1)
        width = submission.tasks
        self.jobs[job] = PaperJob(submission, [TaskState.PENDING] * width, [0] * width)
        self.held[job] = submission.held
        self.effect()
        return job

    def find(self, name: str, tag: str) -> str | None:
        self._answer()
        for number, job in self.jobs.items():
            if (job.submission.name, job.submission.tag) == (name, tag):
                return number
        return None

    def query(self, jobs: Sequence[Job]) -> dict[str, list[Task]]:
        self._answer()
        self.queries += 1
        if self.stale:
            return self.answer
        self.answered_at += 1
        found = {job.job: self.jobs[job.job] for job in jobs if job.job in self.jobs}
        self.answer = {
            number: [
                self._task(number, index, state, job.restarts[index])
                for index, state in enumerate(job.states)
            ]
            for number, job in found.items()
        }
        return self.answer

    def usage(self, jobs: Sequence[Job]) -> dict[str, list[Usage]]:
        self._answer()
        return {job.job: self.used[job.job] for job in jobs if job.job in self.used}

    def cancel(self, job: str, index: int | None = None) -> None:
        self._answer()
        states = self.jobs[job].states
        for i, state in enumerate(states):
            if index in (None, i) and not state.final:
                states[i] = TaskState.CANCELED

    def throttle(self, job: str, running: int) -> None:
        self._answer()
        self.throttled.append((job, running))

    def hold(self, job: str, on: bool) -> None:
        self._answer()
        self.held[job] = on

    def check(self, submission: Submission) -> str:
        return ""

    def capabilities(self) -> Capabilities:
        return self.able

    @property
    def live(self) -> list[tuple[str, int]]:
        """Tasks that wait or run."""
        return [
            (number, index)
            for number, job in self.jobs.items()
            for index, state in enumerate(job.states)
            if not state.final
        ]

    def _task(self, job: str, index: int, state: TaskState, restarts: int) -> Task:
        reason = self.reasons.get(job, "")
        nodes = self.granted.get(f"{job}_{index}", self.granted.get(job, ()))
        code, wait = self.exits.get(job), slurm_waits.wait(reason)
        return Task(job, index, state, reason, restarts, nodes, exit_code=code, wait=wait)

    def _answer(self) -> None:
        if self.down:
            raise Unavailable("the scheduler is on holiday")


class Waves:
    """A searcher: ``count`` trials, ``width`` at once, each until 100 batches.

    ``stop_above``: a trial that reports more than this is stopped. ``breaks_at``: raises when
    that trial reports, in the middle of changing its state.
    """

    name = "waves"
    version = 1

    def __init__(
        self, count: int = 3, width: int = 2, stop_above: float = 1e9, breaks_at: int = 0
    ) -> None:
        self.count, self.width = count, width
        self.stop_above, self.breaks_at = stop_above, breaks_at

    def initial(self) -> events.State:
        return {"made": 0, "ended": 0, "good": 0, "count": self.count, "heard": 0}

    def on_event(
        self, state: events.State, event: events.Event
    ) -> tuple[events.State, list[events.Action]]:
        actions = list[events.Action]()
        wish = 0
        match event:
            case events.Start():
                wish = self.width
            case events.Limits(count, width):
                wish, state["count"] = min(width, count - state["count"]), count
            case events.Report(trial, _, metrics):
                state["heard"] += 1
                if trial == self.breaks_at:
                    raise ValueError("the searcher does not like trial numbers")
                if metrics["loss"] > self.stop_above:
                    actions.append(events.Stop(trial, "too high"))
            case events.SegmentEnd(_, reason):
                state["ended"] += 1
                state["good"] += reason in ("target", "stopped")
                wish = 1
        for _ in range(min(wish, state["count"] - state["made"])):
            state["made"] += 1
            number = state["made"]
            params = {"rate": 0.1 * number}
            actions.append(events.Create(number, params, 7 * number, Length("batches", 100)))
        if state["ended"] == state["count"]:
            actions.append(events.Shutdown(failed=not state["good"]))
        return state, actions


class Promotion:
    """A searcher that pauses and promotes: ``count`` trials, ``width`` at once, until 100 batches.

    Whoever reports after 50 batches and is not the best so far is paused; once all were made,
    the best of the paused ones goes on, ``promoted`` of them.
    """

    name = "promotion"
    version = 1

    def __init__(self, count: int = 4, width: int = 2, promoted: int = 1) -> None:
        self.count, self.width, self.promoted = count, width, promoted

    def initial(self) -> events.State:
        return {"made": 0, "runs": [], "judged": [], "paused": [], "best": None, "promoted": 0}

    def on_event(
        self, state: events.State, event: events.Event
    ) -> tuple[events.State, list[events.Action]]:
        actions = list[events.Action]()
        match event:
            case events.Report(trial, length, metrics) if trial not in state["judged"]:
                if length.value >= 50:
                    state["judged"].append(trial)
                    loss = metrics["loss"]
                    if state["best"] is None or loss < state["best"]:
                        state["best"] = loss
                    elif trial in state["runs"]:
                        state["runs"].remove(trial)
                        state["paused"].append([loss, trial])
                        actions.append(events.Pause(trial, f"{loss} is not the best"))
            case events.SegmentEnd(trial) if trial in state["runs"]:
                state["runs"].remove(trial)
            case events.SegmentEnd(trial):
                state["paused"] = [pair for pair in state["paused"] if pair[1] != trial]
                return state, []
        until = Length("batches", 100)
        while len(state["runs"]) < self.width and state["made"] < self.count:
            state["made"] += 1
            number = state["made"]
            state["runs"].append(number)
            actions.append(events.Create(number, {"rate": 0.1 * number}, 7 * number, until))
        promotable = state["made"] == self.count and state["promoted"] < self.promoted
        if promotable and state["paused"] and len(state["runs"]) < self.width:
            best = min(state["paused"])
            state["paused"].remove(best)
            state["runs"].append(best[1])
            state["promoted"] += 1
            actions.append(events.Continue(best[1], until, "the best of those that are paused"))
        if not state["runs"] and not actions:
            actions.append(events.Shutdown())
        return state, actions


class Heir:
    """A searcher: once trial 1 has reported at 50 batches it is stopped, and trial 2 goes on."""

    name = "heir"
    version = 1

    def initial(self) -> events.State:
        return {"heir": False}

    def on_event(
        self, state: events.State, event: events.Event
    ) -> tuple[events.State, list[events.Action]]:
        until = Length("batches", 100)
        match event:
            case events.Start():
                return state, [events.Create(1, {"rate": 0.1}, 7, until)]
            case events.Report(1, length) if length.value == 50 and not state["heir"]:
                state["heir"] = True
                heir = events.Create(2, {"rate": 0.2}, 7, until, parent="1@50 batches")
                return state, [events.Stop(1, "its heir goes on"), heir]
            case events.SegmentEnd(2):
                return state, [events.Shutdown()]
        return state, []


@dataclass
class Clock:
    """Seconds that pass when a test says so."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class World:
    """An experiment's folder, its scheduler and its clock; holders come and go."""

    paths: ExperimentPaths
    resolved: Resolved
    site: Site
    method: events.Searcher
    scheduler: PaperScheduler = field(default_factory=PaperScheduler)
    clock: Clock = field(default_factory=Clock)

    @classmethod
    def make(
        cls,
        root: Path,
        method: events.Searcher | None = None,
        site: dict[str, Any] | None = None,
        **settings: Any,
    ) -> World:
        """An experiment in ``root`` with a searcher, config keys and site keys of one's own."""
        paths = ExperimentPaths(root / "paper-0001")
        search = {"metric": "loss", "max_concurrent_trials": 2, **settings.pop("searcher", {})}
        resolved = resolved_config.resolve({"name": "paper", "searcher": search, **settings})
        limits = {"poll_min_s": 10, "signal_lead_s": 20, "kill_wait_s": 10}
        told = {"name": "paper", "scheduler": "local", "limits": limits, "lease_ttl_s": 100}
        files.make_folder(paths.code)
        return cls(
            paths, resolved, Site.model_validate({**told, **(site or {})}), method or Waves()
        )

    def holder(self, kind: str = "test", hold: bool = False) -> Holder:
        """A new process, as it were."""
        clock = self.clock
        hands = Hands(
            *(self.resolved, self.site, self.scheduler, self.method, _build, clock),
            sleep=getattr(clock, "sleep", time.sleep),
        )
        return Holder(self.paths, kind, hands, hold)

    def play(self) -> Player:
        return Player(self)


def _build(paths: ExperimentPaths, intent: Intent, resolved: Resolved, site: Site) -> Submission:
    script = paths.script(intent.number)
    files.replace(script, b"#!/bin/sh\n")
    number = (intent.tasks, intent.throttle)
    return Submission(intent.name, intent.tag, script, *number, held=intent.held)


@dataclass
class Player:
    """Plays workers and attempts of a world, one file after the other."""

    world: World

    @property
    def paths(self) -> ExperimentPaths:
        return self.world.paths

    def start(self, job: str, index: int = 0, node: str = "n1") -> WorkerPaths:
        """A task of a job starts and its worker claims its place."""
        task = self.world.scheduler.jobs[job]
        task.states[index] = TaskState.RUNNING
        number = int(task.submission.name.rpartition("-")[2])
        worker = self.paths.worker(number, index, task.restarts[index])
        claim = WorkerClaim(job, node, 1, [node], task.restarts[index], at=files.now())
        claim.write_once(worker.claim)
        return worker

    def start_all(self) -> list[WorkerPaths]:
        """Every task that waits starts."""
        jobs = self.world.scheduler.jobs
        waiting = [
            (number, index)
            for number, index in self.world.scheduler.live
            if jobs[number].states[index] is TaskState.PENDING
        ]
        return [self.start(number, index) for number, index in waiting]

    def leave(self, worker: WorkerPaths, why: str = "idle") -> None:
        """A worker says goodbye and its task completes."""
        WorkerEnd(why, worker.name, files.now()).write_once(worker.end)
        self.vanish(worker, TaskState.COMPLETED)

    def vanish(self, worker: WorkerPaths, state: TaskState) -> None:
        """A task ends in the scheduler's eyes, whatever the worker came to write."""
        for job in self.world.scheduler.jobs.values():
            if job.submission.name == f"{self.paths.id}-{worker.submission}":
                job.states[worker.index] = state

    def claim(self, worker: WorkerPaths, trial: int = 0) -> AttemptPaths:
        """Claim a trial; without a number the lowest runnable one."""
        trials = [self.paths.trial(trial)] if trial else self.paths.trials()
        [chosen, *_] = [t for t in trials if standing(t).state == "runnable"]
        attempt = chosen.attempt(standing(chosen).next_attempt)
        nodes = ["n1"]
        worker_claim = WorkerClaim.read(worker.claim)
        if worker_claim is not None:
            nodes = worker_claim.nodes
        assert Claim(worker.name, nodes[0], "job", nodes).write_once(attempt.claim)
        wakeup.tell(self.paths, attempt.trial, "attempt")
        return attempt

    def report(self, attempt: AttemptPaths, step: int, loss: float | str = 0.5) -> None:
        """Rank 0 reports validation metrics after ``step`` batches."""
        with journal.Writer(attempt.journal) as writer:
            if writer.n == 0:
                writer.append("first_step")
            units = {"batches": step}
            metrics = {"loss": loss}
            writer.append("metrics", group="validation", step=step, metrics=metrics, units=units)
        wakeup.tell(self.paths, attempt.trial, "report")

    def save(self, attempt: AttemptPaths, step: int) -> Path:
        """Rank 0 commits a checkpoint; what it holds nobody can read."""
        folder = self.paths.trial(attempt.trial).checkpoint(step, attempt.number)
        files.make_folder(folder)
        data = f"trial {attempt.trial} after {step}".encode()
        (folder / "rank-00000-of-00001.h5").write_bytes(data)
        shard = {"file": "rank-00000-of-00001.h5", "bytes": len(data)}
        meta = {"batches": step, "kind": "kept", "metric": 0.5, "untold": [1]}
        plain = {"name": folder.name, "digest": data.decode(), "shards": [shard], "meta": meta}
        files.replace(folder / MANIFEST, sealed_json.text(sealed_json.sealed(plain)))
        return folder

    def end(self, attempt: AttemptPaths, reason: Reason, **about: Any) -> None:
        """An attempt ends, as its worker says it."""
        claim = Claim.read(attempt.claim)
        assert claim is not None
        end = End(reason, nodes=claim.nodes, at=files.now())
        dataclasses.replace(end, **about).write_once(attempt.end)
        wakeup.tell(self.paths, attempt.trial, "attempt")

    def finish(self, attempt: AttemptPaths, loss: float = 0.5) -> None:
        """An attempt trains to its target and ends well."""
        control = in_force(self.paths.trial(attempt.trial))
        until = control.until if control else None
        self.report(attempt, until.value if until else 100, loss)
        verdict = Verdict("done", "completed", until.value if until else 100, until)
        verdict.write_once(attempt.verdict)
        self.end(attempt, "completed", progressed=True)

    def fail(self, attempt: AttemptPaths, error: str = "ValueError: x", **about: Any) -> None:
        """The user's code fails."""
        kind, lost = about.pop("verdict", "fail"), about.pop("unrecoverable", False)
        verdict = Verdict(kind, "error", error=error, unrecoverable=lost)
        verdict.write_once(attempt.verdict)
        self.end(attempt, about.pop("reason", "user_error"), error=error, **about)
