"""Whole experiments on the local backend: real scheduler, workers and controller, fake ranks."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcdet.control.requests import commands, fork
from hpcdet.control.requests.replay import Replay
from hpcdet.errors import ConfigError, NotFound
from hpcdet.jobs.create import begin_from, create
from hpcdet.read.experiment.gather import gather
from hpcdet.read.lookup import lineage
from hpcdet.read.views import views
from hpcdet.read.views.trials import BestView
from hpcdet.schedulers.common import processes
from hpcdet.search import searcher_factory
from hpcdet.site import Site
from hpcdet.store.config import overrides, resolved_config
from hpcdet.store.config.overrides import MAX_LENGTH
from hpcdet.store.decisions import chain
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import End, Intent, Submitted, Trial, WorkerEnd
from hpcdet.store.fs import journal
from hpcdet.store.trials.standing import standing
from hpcdet.units import Length
from tests import calm, dose
from tests import experiments as x

DAEMON = {"submit_from_compute": False, "login_daemon": "allowed"}
"""A site whose workers leave all decisions to a searcher on a login node."""

KILLER = '''
"""As ``sitecustomize``: kills this process, but none that it starts, at an effect on files."""
import os
import signal

left = int(os.environ.pop("KILLED_AT", "0"))


def wrapped(name, real):
    def call(*args, **options):
        global left
        left -= 1
        if left == 0:
            if name == "write":  # torn
                real(args[0], bytes(args[1])[: len(args[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **options)

    return call


if left:
    for name in ("link", "replace", "write", "fsync", "mkdir"):
        setattr(os, name, wrapped(name, getattr(os, name)))
'''


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
        state = str(trial)
        for step in range(1, batches + 1):
            state = hashlib.sha256(f"{state} {step}".encode()).hexdigest()
        return state

    def held(self, trials: int = 1, ranks: int = 1) -> dict[str, Any]:
        """A config of trials that stop half-way until they are released."""
        hold = {"at": 30, "until": str(self.folder / "go")}
        return x.config(60, trials=trials, ranks=ranks, data={"hold": hold})

    def wait_for_hold(self, paths: ExperimentPaths, trials: int = 1) -> None:
        x.until(
            lambda: all(x.progress(paths, n) == 30 for n in range(1, trials + 1)),
            lambda: x.story(paths),
        )

    def release(self) -> None:
        (self.folder / "go").touch()


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
    # they have ended and are packed, and all that was read above came from archives
    left = {"trial.json", "history-1.zip", "checkpoints"}
    assert all({path.name for path in trial.root.iterdir()} == left for trial in paths.trials())
    # five trials, but queue time was paid twice only
    assert len(list(paths.workers())) == 2
    x.until(lambda: all(worker.end.exists() for worker in paths.workers()))


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


@pytest.mark.parametrize(("requeue", "attempts"), [("user", 3), ("none", 2)])
def test_walltime_is_a_chain_of_attempts(lab: Lab, requeue: str, attempts: int) -> None:
    batches = 60 * attempts - 20
    data = {"lead_s": 2, "stint": 60, "step_s": 0.005}
    # long enough for a slow machine to reach its first step each time
    values = x.config(batches, data=data, resources={"walltime_s": 8})
    limits = {"signal_lead_s": 2, "poll_min_s": 0.2, "kill_wait_s": 20}
    paths = lab.submit(values, lab.site(capabilities={"requeue": requeue}, limits=limits))
    assert x.crank_to_end(paths).state == "COMPLETED"
    reasons = x.ends(paths, 1)
    assert len(reasons) >= attempts and reasons[-1] == "completed", x.story(paths)
    assert set(reasons[:-1]) == {"walltime"}
    assert x.final_digest(paths, 1) == lab.undisturbed(batches)
    # in place: one submission whose task came back; else one submission after the other
    assert (len(paths.submissions()) == 1) == (requeue == "user")


def test_the_last_worker_comes_back_for_the_next_trial_with_nobody_at_home(lab: Lab) -> None:
    values = x.config(60, trials=2, data={"step_s": 0.1}, resources={"walltime_s": 10})
    values["searcher"]["max_concurrent_trials"] = 1
    values["worker"]["min_segment_s"] = 600  # half of the allocation, that is
    paths = lab.submit(values)
    assert x.run_to_end(paths).state == "COMPLETED"
    assert len(paths.submissions()) == 1
    assert [worker.incarnation for worker in paths.workers()][:2] == [0, 1]


def test_pause_resume_and_cancel_are_obeyed_and_lose_nothing(lab: Lab) -> None:
    paths = lab.submit(lab.held(trials=2))
    lab.wait_for_hold(paths, trials=2)
    commands.ask(paths, "pause")
    x.until(lambda: x.ends(paths, 1) == x.ends(paths, 2) == ["paused"], lambda: x.story(paths))
    assert x.closed(paths) is None
    commands.ask(paths, "cancel", trial=2)
    commands.ask(paths, "resume")
    lab.release()
    assert x.crank_to_end(paths).state == "COMPLETED"
    assert x.ends(paths, 1) == ["paused", "completed"]
    assert x.final_digest(paths, 1) == lab.undisturbed(60)
    assert x.ends(paths, 2) == ["paused"]


def test_cancel_saves_then_ends_the_jobs(lab: Lab) -> None:
    paths = lab.submit(lab.held(trials=2))
    lab.wait_for_hold(paths, trials=2)
    commands.ask(paths, "cancel")
    assert x.crank_to_end(paths).state == "CANCELED"
    assert x.ends(paths, 1) == x.ends(paths, 2) == ["canceled"]
    x.until(lambda: not x.worker_pids(paths) and not x.rank_pids(paths))


@pytest.mark.parametrize("victim", ["rank", "worker", "everything"])
def test_after_sigkill_it_goes_on_from_the_last_checkpoint(lab: Lab, victim: str) -> None:
    paths = lab.submit(lab.held(ranks=2))
    lab.wait_for_hold(paths)
    if victim == "rank":
        x.strike(x.rank_pids(paths)[:1])
    elif victim == "worker":
        x.strike(x.worker_pids(paths))
    else:
        x.end_local_jobs(lab.folder / "state")
        assert not x.worker_pids(paths) and not x.rank_pids(paths)
    lab.release()
    assert x.crank_to_end(paths).state == "COMPLETED"
    # a task that was requeued may be seen as preempted before its new worker says it was lost
    lost, completed = x.ends(paths, 1)
    assert lost == "lost" or (victim, lost) == ("worker", "preempted")
    assert completed == "completed"
    assert x.final_digest(paths, 1) == lab.undisturbed(60)
    first = journal.read(paths.trial(1).attempt(2).journal)[0]
    assert first["checkpoint"] == "00000030.g1"
    # only where all is gone is a new submission needed
    assert len(paths.submissions()) == (2 if victim == "everything" else 1)


@pytest.mark.parametrize("notice", [signal.SIGTERM, signal.SIGUSR2])
def test_a_notice_ends_the_attempt_well_and_the_task_comes_back(
    lab: Lab, notice: signal.Signals
) -> None:
    paths = lab.submit(lab.held(ranks=2))
    lab.wait_for_hold(paths)
    x.strike(x.worker_pids(paths), notice)
    x.until(lambda: x.ends(paths, 1)[:1] == ["preempted"], lambda: x.story(paths))
    lab.release()
    assert x.crank_to_end(paths).state == "COMPLETED"
    assert x.ends(paths, 1) == ["preempted", "completed"]
    assert x.final_digest(paths, 1) == lab.undisturbed(60)
    assert [worker.name for worker in paths.workers()] == ["0001-0000.0", "0001-0000.1"]


def test_a_notice_reaches_the_ranks_while_a_turn_hangs(lab: Lab) -> None:
    """The failure of the first trial runs a hook that does not end while the second trains."""
    hook = f"cd {lab.folder}; echo $$ > pid; mv pid hook; until [ -e unhook ]; do sleep 0.1; done"
    values = lab.held(trials=2)
    values["data"]["crash"] = {"1": [5, 1]}
    values.update(max_restarts=0, notify={"command": hook, "on": ["failure"]})
    values["searcher"]["max_concurrent_trials"] = 1
    paths = lab.submit(values)
    try:
        x.until(lambda: (lab.folder / "hook").exists(), lambda: x.story(paths))
        x.until(lambda: x.progress(paths, 2) == 30, lambda: x.story(paths))
        x.strike(x.worker_pids(paths), signal.SIGTERM)
        x.until(lambda: x.ends(paths, 2)[:1] == ["preempted"], lambda: x.story(paths))
        assert processes.started(int((lab.folder / "hook").read_text())), "it hangs no more"
        # nor does it keep the task from coming back in time
        x.until(lambda: len(list(paths.workers())) == 2, lambda: x.story(paths))
    finally:
        (lab.folder / "unhook").touch()
    lab.release()
    assert x.crank_to_end(paths).state == "COMPLETED"
    assert x.ends(paths, 2) == ["preempted", "completed"]
    assert x.final_digest(paths, 2) == lab.undisturbed(60, 2)


def in_lanes(lab: Lab) -> dict[str, Any]:
    """A config of four trials that stop half-way, two of them in one allocation."""
    values = lab.held(trials=4)
    values["searcher"]["max_concurrent_trials"] = 2
    values["worker"]["lanes"] = 2
    return values


def takers(paths: ExperimentPaths) -> list[list[tuple[int, int]]]:
    """What each worker took, in its order: trial and lane."""
    return [
        [(line["trial"], line["lane"]) for line in lines if line["kind"] == "claimed"]
        for lines in (journal.read(worker.journal) for worker in paths.workers())
    ]


def test_trials_share_an_allocation_and_a_crash_in_one_lane_leaves_the_other(lab: Lab) -> None:
    values = in_lanes(lab)
    values["data"]["crash"] = {"1": [25, 1]}
    paths = lab.submit(values)
    lab.wait_for_hold(paths, trials=2)
    # trial 1 has crashed and come back while trial 2 went on beside it
    assert [x.ends(paths, n) for n in (1, 2)] == [["user_error", ""], [""]]
    assert sorted(takers(paths)[0]) == [(1, 0), (1, 0), (2, 1)]
    lab.release()
    assert x.run_to_end(paths).state == "COMPLETED"
    assert [x.ends(paths, n) for n in (2, 3, 4)] == [["completed"]] * 3
    assert [x.final_digest(paths, n) for n in range(1, 5)] == [
        lab.undisturbed(60, n) for n in range(1, 5)
    ]
    assert len(list(paths.workers())) == 1 and most_at_once(spans(paths)) == 2
    intent = Intent.read(paths.intent(1))
    assert intent is not None and (intent.tasks, intent.throttle) == (1, 1)
    assert "#HPCDET slots=2\n" in paths.script(1).read_text()


def test_a_notice_reaches_every_lane_and_all_come_back(lab: Lab) -> None:
    paths = lab.submit(in_lanes(lab))
    lab.wait_for_hold(paths, trials=2)
    x.strike(x.worker_pids(paths), signal.SIGTERM)
    x.until(
        lambda: [x.ends(paths, n)[:1] for n in (1, 2)] == [["preempted"]] * 2,
        lambda: x.story(paths),
    )
    lab.release()
    assert x.crank_to_end(paths).state == "COMPLETED"
    assert [x.ends(paths, n) for n in (1, 2)] == [["preempted", "completed"]] * 2
    assert [x.final_digest(paths, n) for n in (1, 2)] == [lab.undisturbed(60, n) for n in (1, 2)]
    assert [worker.name for worker in paths.workers()] == ["0001-0000.0", "0001-0000.1"]


def test_a_bad_place_is_left_only_when_its_other_lanes_have_ended(lab: Lab) -> None:
    """And another worker is asked for at once: the trials there need not wait for that."""
    values = in_lanes(lab)
    values["data"]["silent"] = [1]
    paths = lab.submit(values)
    x.until(lambda: len(paths.submissions()) == 2, lambda: x.story(paths))
    assert x.ends(paths, 1)[:2] == ["launch_failed"] * 2 and x.ends(paths, 2) == [""]
    assert WorkerEnd.read(paths.worker(1, 0, 0).end) is None
    lab.release()
    x.until(lambda: x.ends(paths, 2) == ["completed"], lambda: x.story(paths))
    x.until(lambda: WorkerEnd.read(paths.worker(1, 0, 0).end), lambda: x.story(paths))
    end = WorkerEnd.read(paths.worker(1, 0, 0).end)
    assert end is not None and end.why == "bad_node"


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


def test_trials_train_on_from_another_experiment_s_checkpoints(lab: Lab) -> None:
    old = lab.submit(x.config(30))
    x.run_to_end(old)
    values = x.config(60, trials=2, searcher={"begin_from": f"{old.id}/1@30 batches"})
    found = begin_from.look(resolved_config.resolve(values), old.root.parent)
    with pytest.raises(ConfigError, match="trials train until 30"):
        begin_from.look(
            overrides.lay(resolved_config.resolve(values), {MAX_LENGTH: {"batches": 30}}),
            old.root.parent,
        )
    heirs = create.create(x.Plain(values, {}), lab.site(), old.code, old.root.parent, begin=found)
    new = fork.fork(old, {"searcher.max_length": {"batches": 60}}).paths
    x.turn(new)
    assert x.run_to_end(new).state == "COMPLETED", x.story(new)
    assert x.final_digest(new, 1) == lab.undisturbed(60)
    assert x.final_digest(old, 1) == lab.undisturbed(30)
    assert x.ends(new, 1) == ["completed", "completed"]
    away = old.root.rename(old.root.with_name("away"))  # what begins from it has its own files
    assert resolved_config.load(heirs.config).searcher.begin_at == Length("batches", 30)
    x.turn(heirs)
    assert x.run_to_end(heirs).state == "COMPLETED", x.story(heirs)
    rows = lineage.chain(gather(heirs), 2)
    with pytest.raises(NotFound, match="origin/1, which is not there any more"):
        lineage.config(rows, gather(heirs))
    away.rename(old.root)
    again = lineage.config(rows, gather(heirs))["searcher"]
    assert again["begin_from"] == f"{old.id}/1@30 batches"
    assert again["schedule"]["steps"][0]["until"] == {"batches": 60}
    assert x.final_digest(heirs, 1) == x.final_digest(heirs, 2) == lab.undisturbed(60)
    assert "origin/1" in str(Trial.read(heirs.trial(2).record))


def test_a_population_goes_on_in_place_and_its_worst_are_replaced(lab: Lab) -> None:
    """A fake trial is the better, the greater its number: the first one is given up."""
    asked = {
        "name": "pbt",
        "population_size": 3,
        "max_trials": 3,
        "perturbation_interval": {"batches": 20},
        "quantile": 0.3,
    }
    hold = [
        {"at": 10, "until": str(lab.folder / "first"), "trials": [1]},
        {"at": 50, "until": str(lab.folder / "go"), "trials": [2, 3]},
    ]
    data = {"hold": hold, "stint": {"1": 30}}
    paths = lab.submit(x.config(60, trials=3, data=data, searcher=asked))
    x.until(lambda: x.told(paths) == {2, 3}, lambda: x.story(paths))
    (lab.folder / "first").touch()
    x.until(lambda: x.ends(paths, 1) == ["stopped"], lambda: x.story(paths))
    lab.release()
    assert x.crank_to_end(paths).state == "COMPLETED", x.story(paths)
    gathered = gather(paths)
    ends = {trial.number: x.ends(paths, trial.number) for trial in gathered.trials}
    assert ends.pop(1) == ["stopped"], x.story(paths)
    assert ends == {number: ["completed"] for number in (2, 3, 4)}, x.story(paths)
    parent, heir = lineage.chain(gathered, 4)
    assert parent.trial == 3 and heir.checkpoint == f"{heir.from_:08d}.g1"
    assert x.final_digest(paths, 4) == lab.undisturbed(60, 3)
    method = Replay(searcher_factory.searcher(resolved_config.load(paths.config)), {})
    assert list(method.run(chain.read(paths))) and method.difference is None


def test_per_trial_workers_take_one_each(lab: Lab) -> None:
    values = x.config(30, trials=3, worker={"mode": "per_trial"})
    paths = lab.submit(values)
    assert x.crank_to_end(paths).state == "COMPLETED"
    takers = [
        [line["trial"] for line in journal.read(worker.journal) if line["kind"] == "claimed"]
        for worker in paths.workers()
    ]
    assert sorted(takers) == [[1], [2], [3]]


def test_a_budget_stops_trials_at_a_checkpoint_and_more_of_it_goes_on(lab: Lab) -> None:
    values = x.config(
        100,
        trials=2,
        data={"every": 10, "step_s": 0.04, "stubborn": [2]},  # that one has to be killed
        budget={"slot_hours": 5 / 3600},
    )
    paths = lab.submit(values, lab.site(limits={"kill_wait_s": 1, "poll_min_s": 0.2}))
    x.until(lambda: views.status(paths).state == "PAUSED", lambda: x.story(paths))
    found = views.status(paths)
    assert "hpcdet set" in found.why
    assert [set(x.ends(paths, trial)) for trial in (1, 2)] == [{"walltime"}, {"walltime"}]
    assert all(trial.steps > 0 for trial in found.trials), x.story(paths)
    spent = found.spent
    assert 3600 * spent.training_slot_hours > 2 and spent.reserved_slot_hours == 0
    commands.ask(paths, "set", **{"budget.slot_hours": 1})  # type: ignore[arg-type]
    end = x.crank_to_end(paths)
    assert end.state == "COMPLETED", x.story(paths)
    assert [x.final_digest(paths, n) for n in (1, 2)] == [lab.undisturbed(100, n) for n in (1, 2)]


def test_two_objectives_and_a_hard_constraint_on_a_real_cluster(lab: Lab) -> None:
    searcher = {
        "name": "async_halving",
        "max_length": {"batches": 40},
        "divisor": 2,
        "num_rungs": 2,
        "max_trials": 5,
        "max_concurrent_trials": 2,
        "objectives": [{"metric": "validation_loss"}, {"metric": "ms"}],
        "constraints": [{"metric": "gb", "upper": 4, "mode": "hard"}],
    }
    data = {"besides": {"ms": 10, "gb": 1}, "step_s": 0.05}  # not over before it is told to stop
    values = x.config(40, trials=5, data=data, searcher=searcher)
    paths = lab.submit(values)
    assert x.crank_to_end(paths).state == "COMPLETED", x.story(paths)
    status = views.status(paths)
    rows = {row.trial: row for row in status.trials}
    assert rows[5].why == "constraint gb <= 4: gb is 5" and x.ends(paths, 5) == ["stopped"]
    beside = rows[5].compared
    assert beside is not None and (beside.feasible, rows[5].best) == (
        None,
        None,
    )  # never as far as the others
    # the better one is, the slower; all that trained in full are on the front, the best one first
    full = [n for n in range(4, 0, -1) if rows[n].steps == 40]
    assert [row.trial for row in status.front] == full and status.compared_at == 40
    assert status.best == BestView(trial=full[0], value=1 / full[0], step=40)
    method = Replay(searcher_factory.searcher(resolved_config.load(paths.config)), {})
    assert list(method.run(chain.read(paths))) and method.difference is None


def searcher(paths: ExperimentPaths, folder: Path, killed_at: int) -> int:
    """``hpcdet searcher run``, killed at one of its effects on files unless that is 0."""
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    argv = [sys.executable, "-m", "hpcdet", "searcher", "run", str(paths.root)]
    env = {**os.environ, "PYTHONPATH": path, "KILLED_AT": str(killed_at)}
    with subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL) as process:
        try:
            return process.wait(x.PATIENCE_S)
        finally:
            process.kill()


def test_a_searcher_killed_at_any_effect_is_followed_as_if_nothing_had_been(lab: Lab) -> None:
    draw, kills, deaths = random.Random(f"searcher {dose.SEED}"), max(1, dose.BLOWS * 3 // 20), 0
    asked = {
        "name": "async_halving",
        "max_length": {"batches": 9},
        "divisor": 3,
        "num_rungs": 2,
        "max_trials": 6,
        "max_concurrent_trials": 2,
    }
    values = x.config(9, data={"losses": "scrambled", "every": 3}, searcher=asked)
    # workers leave all decisions to it
    site = lab.site(capabilities=DAEMON, lease_ttl_s=5)
    (lab.folder / "sitecustomize.py").write_text(KILLER)
    model, jobs = lab.folder / "model", set[str]()
    model.mkdir(mode=0o700)
    while deaths < kills:
        paths = create.create(x.Plain(values, {}), site, model, lab.folder / "root")
        at = draw.randint(1, 120)
        while code := searcher(paths, lab.folder, at):
            assert code == -signal.SIGKILL, x.story(paths)
            deaths += 1
            print(f"killed at effect {at}")
            at = draw.randint(1, 120) if deaths < kills else 0
        end = x.closed(paths)
        assert end is not None, x.story(paths)
        assert (end.state, end.why) == ("COMPLETED", "6 of 6 trials succeeded"), x.story(paths)
        # what it heard and decided, reasons included, is what it would have undisturbed
        assert calm.recorded(paths) == calm.undisturbed(paths)
        for trial in paths.trials():
            ends = x.ends(paths, trial.number)
            full = "completed" in ends  # who has left for a pause hears of no stop afterwards
            last = "completed" if full else "stopped"
            assert ends and set(ends) <= {"paused", last}, x.story(paths)
            if full:
                assert x.final_digest(paths, trial.number) == lab.undisturbed(9, trial.number)
        for number in paths.submissions():
            submitted = Submitted.read(paths.submitted(number))
            assert submitted is not None
            jobs |= {submitted.job} - {""}
    known = {file.parent.name for file in lab.folder.glob("state/jobs/*/job.json")}
    assert known == jobs, "a job that nobody knows of"
