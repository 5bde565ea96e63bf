"""Random blows against a trial of two real ranks on two nodes of the private Slurm.

``HPCDET_CHAOS`` is the number of blows (3 by default), ``HPCDET_CHAOS_SEED`` makes them the same
again; ``make chaos KILLS=100 SEED=1`` sets both.
"""

from __future__ import annotations

import collections
import contextlib
import os
import random
import signal
from collections.abc import Callable

import pytest

from tests.experiments import damage, rank_pids, same_bits, strike, until, worker_pids
from tests.slurm_runs import Lab, Run, config, dice, urgent

pytestmark = [pytest.mark.slurm, pytest.mark.chaos, pytest.mark.xdist_group("slurm-b")]

PER_TRIAL = 5
"""Blows that one trial takes."""


def _kill_a_rank(run: Run, rng: random.Random) -> None:
    strike(rng.sample(rank_pids(run.paths), k=1) if rank_pids(run.paths) else [])


def _kill_all_ranks(run: Run, _: random.Random) -> None:
    strike(rank_pids(run.paths))


def _tell_the_ranks(run: Run, rng: random.Random) -> None:
    strike(rank_pids(run.paths), rng.choice([signal.SIGTERM, signal.SIGUSR2]))


def _kill_the_worker(run: Run, _: random.Random) -> None:
    strike(worker_pids(run.paths)[:1])


def _kill_the_searcher(run: Run, _: random.Random) -> None:
    for pid in run.started[-1:]:
        strike([pid])
        with contextlib.suppress(ChildProcessError):  # subprocess may have been first
            os.waitpid(pid, 0)
    run.crank()


def _requeue(run: Run, _: random.Random) -> None:
    run.cluster.call("scontrol", "requeue", run.task())


def _preempt(run: Run, _: random.Random) -> None:
    attempt = len(run.reasons())
    with urgent(run.cluster, run.claim().nodes):
        until(lambda: run.reasons()[attempt - 1], run.story)


def _flip_bits(run: Run, rng: random.Random) -> None:
    strike(rank_pids(run.paths))
    print(damage(run.paths, "bit flips", rng))


def _truncate(run: Run, rng: random.Random) -> None:
    strike(rank_pids(run.paths))
    print(damage(run.paths, "truncation", rng))


BLOWS: tuple[Callable[[Run, random.Random], None], ...] = (
    _kill_a_rank,
    _kill_all_ranks,
    _tell_the_ranks,
    _kill_the_worker,
    _kill_the_searcher,
    _requeue,
    _preempt,
    _flip_bits,
    _truncate,
)


def test_random_blows_leave_the_bits_as_they_are(lab_b: Lab) -> None:
    dose = int(os.environ.get("HPCDET_CHAOS") or 3)
    rng = dice("chaos on slurm")
    still = lab_b.submit(config())
    still.wait()
    wanted = still.digest()
    struck: collections.Counter[str] = collections.Counter()
    while (left := dose - struck.total()) > 0:
        mode = rng.choice(["shared", "per_trial"])
        run = lab_b.submit(config(max_restarts=10, worker={"mode": mode}), pace=0.3)
        run.crank()
        for _ in range(min(left, PER_TRIAL)):
            run.until_training()
            step = run.batches() + rng.randrange(4)
            until(lambda: run.batches() >= step or any(run.reasons()[-1:]), run.story)  # noqa: B023
            if "completed" in run.reasons():
                break
            blow = rng.choice(BLOWS)
            struck[blow.__name__] += 1
            print(f"{blow.__name__} at batch {run.batches()} of {len(run.reasons())}")
            blow(run, rng)
        run.faster()
        run.wait(timeout=500)
        same_bits(run.digest(), wanted, run.story())
        assert not {"user_error", "oom", "launch_failed"} & set(run.reasons()), run.story()
    print(f"{struck.total()} blows: {dict(struck)}")
