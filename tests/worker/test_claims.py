"""A worker's place and its attempts are taken by one only; nothing is done before all is there."""

from __future__ import annotations

import errno
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcdet.control import daemon
from hpcdet.control.turn.controller import Turn
from hpcdet.schedulers import opening
from hpcdet.schedulers.common.allocation import Allocation
from hpcdet.site_files import load_site
from hpcdet.store.config import resolved_config
from hpcdet.store.decisions import lease, wakeup
from hpcdet.store.folder.layout import (
    ExperimentPaths,
    TrialPaths,
)
from hpcdet.store.folder.records import (
    Claim,
    Closed,
    Control,
    End,
    Intent,
    Submitted,
    Trial,
    Verdict,
    WorkerClaim,
    WorkerEnd,
)
from hpcdet.store.fs import files, journal
from hpcdet.store.trials import observer
from hpcdet.units import Length
from hpcdet.warm import oom_kills
from hpcdet.worker import again, sentinel
from hpcdet.worker.allocation.notice import Notices
from hpcdet.worker.attempts import cancels, drain_staging
from hpcdet.worker.attempts.lane import Lane
from hpcdet.worker.claims import claimable, claims
from hpcdet.worker.turns.worker_turns import WorkerCrank
from tests import experiments as x
from tests.worker.places import DAEMON, HERE, Once, at_work, attempt, worker


def _race(root: Path, barrier: object, answers: object) -> None:
    paths = ExperimentPaths(root)
    barrier.wait()
    me = claims.take_place(paths, 1, 0, HERE)
    rival = paths.worker(1, os.getpid(), 0)  # another index each: all race for the attempts
    taken = []
    while (found := claims.next_attempt(paths, rival, HERE)) is not None:
        taken.append((found.trial, found.number))
    answers.put((me is not None, taken))


def test_of_many_workers_one_gets_a_place_and_each_attempt(paths: ExperimentPaths) -> None:
    context = multiprocessing.get_context("fork")
    barrier, answers = context.Barrier(6), context.Queue()
    racers = [context.Process(target=_race, args=(paths.root, barrier, answers)) for _ in range(6)]
    try:
        for racer in racers:
            racer.start()
        found = [answers.get(timeout=x.PATIENCE_S) for _ in racers]
    finally:
        for racer in racers:
            racer.kill()
            racer.join()
    assert [won for won, _ in found].count(True) == 1
    assert sorted(taken for _, all_of_one in found for taken in all_of_one) == [(1, 1), (2, 1)]


def test_a_new_incarnation_closes_what_its_predecessor_left_open(paths: ExperimentPaths) -> None:
    old = worker(paths)
    silent = attempt(paths, old, progressed=True)
    spoken = paths.trial(2).attempt(1)
    Claim(old.name, "here").write_once(spoken.claim)
    Verdict("resume", "signal", batches=7).write_once(spoken.verdict)
    other = paths.trial(2).attempt(2)
    Claim("0001-0005.0", "elsewhere").write_once(other.claim)

    new = worker(paths, 1)
    closed = claims.close_predecessors(paths, new)
    assert [(a.trial, a.number) for a in closed] == [(1, 1), (2, 1)]
    end = End.read(silent.end)
    assert end == End("lost", None, True, "", ["n1"], new.name, end.at if end else "", True)
    end = End.read(spoken.end)
    assert end is not None and end.reason == "preempted"
    assert not other.end.exists(), "that one belongs to a worker that may live"
    lost = WorkerEnd.read(old.end)
    assert lost is not None and lost.why == "lost"


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A worker that was started before its experiment is to be seen."""
    root = tmp_path / "late-0001"
    digest = config_digest(tmp_path)
    argv = [sys.executable, "-m", "hpcdet.worker", str(root), "--submission", "1"]
    process = subprocess.Popen(
        [*argv, "--index", "0", "--digest", digest], stderr=subprocess.PIPE, text=True
    )
    yield process
    process.kill()
    process.communicate()


def config_digest(folder: Path) -> str:
    source = folder / "source.yaml"
    source.write_bytes(resolved_config.dump(x.config(worker={"idle_s": 600})))
    return resolved_config.digest(source)


def test_a_worker_waits_for_its_experiment_and_ends_only_when_it_is_closed(
    tmp_path: Path, waiting: subprocess.Popen[str]
) -> None:
    paths = ExperimentPaths(tmp_path / "late-0001")
    files.make_folder(paths.root)
    site = x.local_site(capabilities=DAEMON)
    files.write_once(paths.site, load_site.dump(site))
    # first another config, as a cache may show an old file of that name
    files.write_once(paths.config, b"name: old\n")
    claim = paths.worker(1, 0, 0).claim
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(1.5)
    assert not claim.exists()
    files.replace(paths.config, (tmp_path / "source.yaml").read_bytes())
    x.until(claim.exists)
    # no trials to be seen is no reason to leave
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(1.5)
    Closed("CANCELED").write_once(paths.closed)
    assert waiting.wait(x.PATIENCE_S) == 0
    end = WorkerEnd.read(paths.worker(1, 0, 0).end)
    assert end is not None and end.why == "closed"


def test_a_worker_that_finds_its_place_taken_leaves(tmp_path: Path, paths: ExperimentPaths) -> None:
    files.write_once(paths.config, resolved_config.dump(x.config()))
    files.write_once(paths.site, load_site.dump(x.local_site()))
    WorkerClaim("other", "there", 1).write_once(paths.worker(1, 0, 0).claim)
    argv = [sys.executable, "-m", "hpcdet.worker", str(paths.root), "--submission", "1"]
    done = subprocess.run([*argv, "--index", "0"], timeout=x.PATIENCE_S, check=False)
    assert done.returncode == 0
    assert not paths.worker(1, 0, 0).journal.exists()
    assert not paths.trial(1).attempts()


@pytest.mark.parametrize(
    ("turn", "told"),
    [
        (Turn(True, wanted=2, lacking=2), True),
        (Turn(True, wanted=2, lacking=2, live=(1,), blind="it is away"), True),
        (Turn(True), False),
        (Turn(True, wanted=2, lacking=2, sent=2), False),
    ],
)
def test_a_sentinel_tells_only_where_somebody_is_needed_and_nobody_was_sent(
    paths: ExperimentPaths, monkeypatch: pytest.MonkeyPatch, turn: Turn, told: bool
) -> None:
    """Its time may be over after any turn."""
    files.write_once(paths.site, load_site.dump(x.local_site()))
    files.write_once(paths.config, resolved_config.dump(x.config()))
    monkeypatch.setattr(sentinel, "turns", lambda *_: iter([turn]))
    assert (sentinel.watch(paths, 1) is not None) == paths.stuck(1).exists() == told


@pytest.mark.parametrize("alive", [True, False])
@pytest.mark.parametrize("posted", [None, Submitted("", error="refused"), Submitted("9")])
def test_a_sentinel_leaves_the_rest_to_a_later_one_only_while_somebody_decides(
    paths: ExperimentPaths, monkeypatch: pytest.MonkeyPatch, posted: Submitted | None, alive: bool
) -> None:
    """A living holder may decide for days, and this job counts; a dead one's lease runs out."""
    files.write_once(paths.site, load_site.dump(x.local_site()))
    files.write_once(paths.config, resolved_config.dump(x.config()))
    for number in (1, 2):
        Intent(number, "x", "x", tasks=1, throttle=1, term=0).write_once(paths.intent(number))
    Submitted("8").write_once(paths.sentinel_submitted(1))
    if posted:
        posted.write_once(paths.sentinel_submitted(2))
    now = [0.0]
    another = lease.Lease(paths, "worker", 100, lambda: now[0])
    with monkeypatch.context() as there:
        there.setattr(os, "getpid", lambda: 1)
        assert another.try_acquire()
    monkeypatch.delitem(lease._held, paths.root)  # as of another process
    taken: list[Turn] = []

    def turns(*_: object) -> Iterator[Turn]:
        mine = lease.Lease(paths, "sentinel", 100, lambda: now[0])
        while len(taken) < 15:
            taken.append(Turn(mine.try_acquire(), wanted=2, lacking=2))
            yield taken[-1]
            now[0] += 10
            if alive:
                another.beat()

    monkeypatch.setattr(sentinel, "turns", turns)
    told = sentinel.watch(paths, 1)
    leaves = alive and posted == Submitted("9")
    assert len(taken) == (2 if leaves else 15)
    assert any(turn.held for turn in taken) == (told is not None) == (not alive)


def test_an_end_is_told_to_whoever_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its turns are seconds apart; a place stays empty until it has decided what comes next."""
    paths = ExperimentPaths(tmp_path / "test-0001")
    files.make_folder(paths.root)
    site = x.local_site()
    files.write_once(paths.site, load_site.dump(site))
    files.write_once(paths.config, resolved_config.dump(x.config()))
    assert lease.Lease(paths, "daemon", 100).try_acquire()
    with journal.Writer(paths.worker(1, 0, 0).journal) as log:
        crank = WorkerCrank(paths, site, log, Notices())
        crank.turn(now=True)
        x.until(lambda: crank.turns > 0, lambda: "no turn")
        assert not crank.decides
        daemon._wait(paths, [], 3600.0)
        assert not wakeup.take(paths), "it was heard"
        Closed("COMPLETED").write_once(paths.closed)
        once = Once(monkeypatch)
        once.refuses(lease, "last", lambda _: True)
        crank.last_turn()
        assert crank.decides and once.refused
        wakeup.give(paths, "0001-0001.0")
        made = crank.turns
        crank.turn()
        x.until(lambda: crank.turns > made, lambda: "no turn")
        assert not wakeup.take(paths), "nor is this worker deaf"
        crank.close()


def test_an_attempt_is_judged_by_how_things_were_when_it_ended(
    paths: ExperimentPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when what it left on its node had been copied: its allocation may be over by then."""
    attempt = paths.trial(1).attempt(1)
    with journal.Writer(paths.worker(1, 0, 0).journal) as log:
        work = at_work(paths, log, Allocation("job_0", ("n1",), end_at=time.time() + 3600))
        Claim(work.me.name, "n1").write_once(attempt.claim)

        def drain(*_: object) -> None:
            work.allocation = Allocation("job_0", ("n1",), end_at=0.0)
            monkeypatch.setattr(work.notices, "heard", lambda: "SIGTERM")

        monkeypatch.setattr(drain_staging, "drain", drain)
        end = work._judge(Lane(0, attempt, None, oom_kills.of_machine(), "srun: no such file"))
    assert (end.reason, end.error) == ("launch_failed", "srun: no such file")


def test_a_worker_that_others_believe_lost_takes_nothing_more(paths: ExperimentPaths) -> None:
    with journal.Writer(paths.worker(1, 0, 0).journal) as log:
        work = at_work(paths, log)
        WorkerEnd("lost", "term 3").write_once(work.me.end)
        assert work.work() == 0
    assert not paths.trial(1).attempts()


def test_trials_that_stand_as_before_are_not_read_again(
    paths: ExperimentPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, read, real = [0.0], list[int](), TrialPaths.numbers

    def numbers(trial: TrialPaths) -> list[int]:
        read.append(trial.number)
        return real(trial)

    def looked(seconds: float = 5.0) -> list[str]:
        read.clear()
        now[0] += seconds
        seen.begin()
        return [seen.trial(trial.number).standing.state for trial in paths.trials()]

    monkeypatch.setattr(TrialPaths, "numbers", numbers)
    monkeypatch.setattr(observer, "A_ROUND", 1)
    seen = claimable.Outlook(paths, lambda: now[0])
    wishes = {3: "pause", 4: "stop", 5: "fail"}
    for number, wish in wishes.items():
        trial = paths.trial(number)
        Trial(number, {}, number).write_once(trial.record)
        Control(wish).write_once(trial.control(1))  # type: ignore[arg-type]
        os.utime(trial.controls, ns=(0, 0))  # whatever the tick of the clock is
    one, done = attempt(paths, worker(paths), progressed=True), [paths.trial(n) for n in (6, 7)]
    os.utime(one.root, ns=(0, 0))
    for trial in done:
        Trial(trial.number, {}, trial.number).write_once(trial.record)
        Control("run", Length("batches", 50)).write_once(trial.control(1))
        Claim("0001-0000.0", "here").write_once(trial.attempt(1).claim)
        Verdict("done", "completed", 50, Length("batches", 50)).write_once(trial.attempt(1).verdict)
        End("completed", progressed=True).write_once(trial.attempt(1).end)
        os.utime(trial.controls, ns=(0, 0))
    while read:
        assert looked() == ["running", "runnable", "paused", "stopped", "failed", "done", "done"]
        assert now[0] < 60
    End("preempted").write_once(one.end)
    for trial in done:  # a searcher wants more of them
        Control("run", Length("batches", 100), term=1).write_once(trial.control(2))
    for number in wishes:
        Control("run", term=1).write_once(paths.trial(number).control(2))
    stand = looked()
    assert [stand[number - 1] for number in (1, 2, 3, 6, 7)] == ["runnable"] * 5
    assert stand != ["runnable"] * 7
    looked()
    assert looked() == ["runnable"] * 7, "those that were over come in turns"
    for number in (4, 5):
        Control("stop", term=2).write_once(paths.trial(number).control(3))
    assert [looked()[3:5] for _ in range(2)] == [["stopped"] * 2] * 2
    for number in (4, 5):
        Control("run", term=3).write_once(paths.trial(number).control(4))
        assert seen.now(number).state == "runnable", "a last look is at all of them"
    me = paths.worker(1, 0, 0)
    told = claims.next_attempt(paths, me, HERE, outlook=seen, heard=lambda: "SIGTERM")
    assert told is None and not paths.trial(2).attempts()
    # nor does a worker ask for weeks what is wanted of the trial that it runs
    wanted = cancels.Cancels(paths, 5.0, lambda: now[0])
    os.utime(paths.trial(2).controls, ns=(0, 0))
    for _ in range(3):
        now[0] += 5.0
        assert not wanted.has(2)
    Control("kill", now=True).write_once(paths.trial(2).control(2))
    assert not wanted.has(2), "it has just looked"
    now[0] += 5.0
    assert wanted.has(2)


def test_a_task_is_requeued_after_progress_and_a_few_times_without(
    paths: ExperimentPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = x.local_site(max_restarts_in_place=2)

    def asks(incarnation: int, code: int = 85) -> bool:
        return again.requeue(paths, paths.worker(1, 0, incarnation), code, site)

    refused = [OSError(errno.EIO, "the file server does not answer")]
    real = Closed.read

    def read(path: Path) -> Closed | None:
        if refused:
            raise refused.pop()
        return real(path)

    monkeypatch.setattr(again, "_AGAIN_S", 0.0)
    monkeypatch.setattr(again, "from_resolved", lambda _: site)
    monkeypatch.setattr(again.Closed, "read", read)
    place = ("--submission", "1", "--index", "0", "--restart", "0", "--code", "85")
    assert again.main([str(paths.root), *place]) == 0 and not refused
    assert not asks(0, 0), "it left by itself"
    assert not asks(0, 1), "it failed"
    assert asks(0) and asks(0, 137)
    # nobody ever came to claim anything: a worker that dies at import
    assert asks(1, 137) and not asks(2, 137)
    first = worker(paths)
    attempt(paths, first, progressed=True, ended=True)
    assert asks(2, 137) and not asks(3, 137)
    attempt(paths, worker(paths, 3), progressed=False, ended=True)
    assert not asks(3)
    attempt(paths, worker(paths, 4), progressed=True, ended=True)
    assert asks(4)
    end = paths.worker(1, 0, 4).end
    WorkerEnd("signal", returns=True).write_once(end)
    assert asks(4, 137), "it had said that it would come back"
    end.unlink()
    WorkerEnd("idle").write_once(end)
    assert not asks(4, 137), "it had said goodbye"
    Closed("COMPLETED").write_once(paths.closed)
    assert not asks(4)


def test_the_allocation_is_read_from_the_environment() -> None:
    local = opening.backend("local").inside.allocation(
        {"HPCDET_JOB": "local-1_3", "HPCDET_RESTART_COUNT": "2", "HPCDET_DEADLINE": "99.5"},
        None,
    )
    assert (local.job, local.restart, local.end_at, local.steps_hear) == (
        "local-1_3",
        2,
        99.5,
        False,
    )
    alone = opening.backend("local").inside.allocation({}, None)
    assert (alone.job, alone.restart, alone.end_at) == ("", 0, None)
    task = {"SLURM_JOB_ID": "54", "SLURM_ARRAY_JOB_ID": "51", "SLURM_ARRAY_TASK_ID": "3"}
    slurm = opening.backend("slurm").inside.allocation(
        {**task, "SLURM_JOB_END_TIME": "1795266847", "SLURM_RESTART_COUNT": "1"}, None
    )
    assert (slurm.job, slurm.restart, slurm.end_at) == ("51_3", 1, 1795266847.0)
    assert slurm.steps_hear
