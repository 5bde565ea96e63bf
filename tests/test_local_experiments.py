"""Whole experiments on the local backend: real scheduler, workers and controller, fake ranks."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcdet.control import commands
from hpcdet.site import Site
from hpcdet.store import journal
from hpcdet.store.layout import ExperimentPaths
from hpcdet.store.records import End, WorkerEnd
from hpcdet.store.trials import standing
from tests import experiments as x


class Lab:
    """Submits experiments with fake ranks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = x.fake_python(folder)

    def site(self, **changes: Any) -> Site:
        return x.local_site(python=self.python, **changes)

    def submit(self, values: dict[str, Any], site: Site | None = None) -> ExperimentPaths:
        return x.submit(values, self.folder / "root", site or self.site())

    def undisturbed(self, batches: int, trial: int = 1) -> str:
        """The state in which a fake trial ends that nobody disturbs."""
        import hashlib

        state = str(trial)
        for step in range(1, batches + 1):
            state = hashlib.sha256(f"{state} {step}".encode()).hexdigest()
        return state


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with x.local_jobs(tmp_path / "state"):
        yield Lab(tmp_path)


def spans(paths: ExperimentPaths) -> list[tuple[str, str]]:
    """From first record to last of each attempt."""
    found = []
    for trial in paths.trials():
        for attempt in trial.attempts():
            lines = journal.read(attempt.journal)
            found.append((lines[0]["t"], lines[-1]["t"]))
    return found


def most_at_once(intervals: list[tuple[str, str]]) -> int:
    return max(sum(a <= start < b for a, b in intervals) for start, _ in intervals)


def test_a_sweep_runs_on_fewer_workers_than_trials_and_the_throttle_holds(lab: Lab) -> None:
    values = x.config(60, trials=5, ranks=2, searcher={"max_concurrent_trials": 2})
    paths = lab.submit(values)
    assert x.run_to_end(paths).state == "COMPLETED", x.story(paths)
    assert [x.ends(paths, n) for n in range(1, 6)] == [["completed"]] * 5
    assert [x.final_digest(paths, n) for n in range(1, 6)] == [
        lab.undisturbed(60, n) for n in range(1, 6)
    ]
    assert most_at_once(spans(paths)) <= 2
    # five trials, but queue time was paid twice only
    assert len(list(paths.workers())) == 2
    assert [line["kind"] for line in journal.read(next(paths.workers()).journal)][-1] == "end"


def test_a_crash_leaves_others_alone_is_retried_and_given_up_in_the_end(lab: Lab) -> None:
    values = x.config(
        60,
        trials=3,
        max_restarts=2,
        data={"crash": {"1": [35, 1], "2": [35, 99]}},
    )
    paths = lab.submit(values)
    assert x.run_to_end(paths).state == "COMPLETED"
    assert x.ends(paths, 1) == ["user_error", "completed"]
    start = journal.read(paths.trial(1).attempt(2).journal)[0]
    assert start["checkpoint"] == "00000030.g1"
    assert x.final_digest(paths, 1) == lab.undisturbed(60, 1)
    assert x.ends(paths, 2) == ["user_error"] * 3
    assert standing(paths.trial(2)).state == "failed"
    last = End.read(paths.trial(2).attempt(3).end)
    assert last is not None and last.error == "RuntimeError: crash of trial 2 at step 35"
    assert x.ends(paths, 3) == ["completed"]


@pytest.mark.parametrize("requeue", ["user", "none"])
def test_walltime_is_a_chain_of_attempts(lab: Lab, requeue: str) -> None:
    # long enough for a slow machine to reach its first step each time
    data = {"lead_s": 1.0, "step_s": 0.05}
    values = x.config(200, data=data, resources={"walltime_s": 6})
    limits = {"signal_lead_s": 1, "poll_min_s": 0.2, "kill_wait_s": 5}
    paths = lab.submit(values, lab.site(capabilities={"requeue": requeue}, limits=limits))
    assert x.crank_to_end(paths).state == "COMPLETED"
    reasons = x.ends(paths, 1)
    assert reasons[-1] == "completed" and len(reasons) >= 3, x.story(paths)
    assert set(reasons[:-1]) == {"walltime"}
    assert x.final_digest(paths, 1) == lab.undisturbed(200)
    # in place: one submission whose task came back; else one submission after the other
    assert (len(paths.submissions()) == 1) == (requeue == "user")


def test_pause_resume_and_cancel_are_obeyed_and_lose_nothing(lab: Lab) -> None:
    paths = lab.submit(x.config(150, trials=2, data={"step_s": 0.02}))
    x.until(lambda: x.progress(paths, 1) >= 20, lambda: x.story(paths))
    commands.ask(paths, "pause")
    x.until(lambda: x.ends(paths, 1) == x.ends(paths, 2) == ["paused"], lambda: x.story(paths))
    assert x.closed(paths) is None
    commands.ask(paths, "cancel", trial=2)
    commands.ask(paths, "resume")
    assert x.crank_to_end(paths).state == "COMPLETED"
    assert x.ends(paths, 1) == ["paused", "completed"]
    assert x.final_digest(paths, 1) == lab.undisturbed(150)
    assert x.ends(paths, 2) == ["paused"]


def test_cancel_saves_then_ends_the_jobs(lab: Lab) -> None:
    paths = lab.submit(x.config(100_000, trials=2))
    x.until(lambda: x.progress(paths, 1) >= 20, lambda: x.story(paths))
    commands.ask(paths, "cancel")
    assert x.crank_to_end(paths).state == "CANCELED"
    assert x.ends(paths, 1)[-1] == "canceled"
    x.until(lambda: not x.worker_pids(paths) and not x.rank_pids(paths))


@pytest.mark.parametrize("victim", ["rank", "worker", "everything"])
def test_after_sigkill_it_goes_on_from_the_last_checkpoint(lab: Lab, victim: str) -> None:
    paths = lab.submit(x.config(120, ranks=2, data={"step_s": 0.02}))
    x.until(lambda: x.progress(paths) >= 20, lambda: x.story(paths))
    if victim == "rank":
        x.strike(x.rank_pids(paths)[:1])
    elif victim == "worker":
        x.strike(x.worker_pids(paths))
    else:
        x.end_local_jobs(lab.folder / "state")
        assert not x.worker_pids(paths) and not x.rank_pids(paths)
    assert x.crank_to_end(paths).state == "COMPLETED"
    # a task that was requeued may be seen as preempted before its new worker says it was lost
    lost, completed = x.ends(paths, 1)
    assert lost == "lost" or (victim, lost) == ("worker", "preempted")
    assert completed == "completed"
    assert x.final_digest(paths, 1) == lab.undisturbed(120)
    first = journal.read(paths.trial(1).attempt(2).journal)[0]
    assert first["checkpoint"], "it began anew"
    # only where all is gone is a new submission needed
    assert len(paths.submissions()) == (2 if victim == "everything" else 1)


@pytest.mark.parametrize("notice", [signal.SIGTERM, signal.SIGUSR2])
def test_a_notice_ends_the_attempt_well_and_the_task_comes_back(
    lab: Lab, notice: signal.Signals
) -> None:
    paths = lab.submit(x.config(120, ranks=2, data={"step_s": 0.02}))
    x.until(lambda: x.progress(paths) >= 20, lambda: x.story(paths))
    x.strike(x.worker_pids(paths), notice)
    assert x.crank_to_end(paths).state == "COMPLETED"
    assert x.ends(paths, 1) == ["preempted", "completed"]
    assert x.final_digest(paths, 1) == lab.undisturbed(120)
    assert [worker.name for worker in paths.workers()] == ["0001-0000.0", "0001-0000.1"]


def test_a_place_where_nothing_starts_ends_the_worker_and_is_not_the_trials_fault(
    lab: Lab,
) -> None:
    paths = lab.submit(x.config(30, trials=3, data={"silent": [1, 2, 3]}, max_restarts=0))
    x.until(
        lambda: any(
            (end := WorkerEnd.read(worker.end)) and end.why == "bad_node"
            for worker in paths.workers()
        ),
        lambda: x.story(paths),
    )
    for trial in paths.trials():
        assert set(x.ends(paths, trial.number)) <= {"launch_failed", ""}


def test_per_trial_workers_take_one_each(lab: Lab) -> None:
    values = x.config(30, trials=3, worker={"mode": "per_trial"})
    paths = lab.submit(values)
    assert x.crank_to_end(paths).state == "COMPLETED"
    takers = [
        [line["trial"] for line in journal.read(worker.journal) if line["kind"] == "claimed"]
        for worker in paths.workers()
    ]
    assert sorted(takers) == [[1], [2], [3]]
