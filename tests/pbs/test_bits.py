"""Bits on a real PBS: however a trial is disturbed, it ends in the same state.

Real ranks, on one host and on two. Each test disturbs a trial at a random step in one way; the
reference is the same trial undisturbed.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.dose import dice
from tests.experiments import parent, processes_of, rank_pids, same_bits, strike, worker_pids
from tests.pbs_runs import PbsLab, sized
from tests.slurm_runs import Run

pytestmark = [pytest.mark.pbs, pytest.mark.xdist_group("pbs")]

PACE = 0.2
"""Seconds per batch until the disturbance; a trial is 40 batches."""

LATE = 2.0
"""Seconds per batch from there on: a blow falls before the trial's end, however long it takes."""

_references: dict[tuple[int, int], str] = {}


def launcher(nodes: int) -> str:
    return "local" if nodes == 1 else "mpirun"


def reference(lab: PbsLab, ranks: int, nodes: int) -> str:
    """Digest of the undisturbed trial; one run serves all tests."""
    if (ranks, nodes) not in _references:
        run = lab.run(sized(ranks, nodes), launcher=launcher(nodes))
        run.wait()
        assert run.reasons() == ["completed"], run.story()
        _references[ranks, nodes] = run.digest()
    return _references[ranks, nodes]


def kill_a_rank(run: Run) -> None:
    """The step fails at once, and the same worker goes on with the trial."""
    strike(rank_pids(run.paths)[-1:])


def kill_the_worker(run: Run) -> None:
    """The script that survives its worker submits a successor."""
    strike(worker_pids(run.paths)[:1])


def kill_everything(run: Run) -> None:
    """Ranks, worker, script and searcher at once; then somebody comes back."""
    run.crank()
    workers = processes_of(run.paths, "hpcdet.worker")
    strike([*run.started, *(parent(pid) for pid in workers), *workers, *rank_pids(run.paths)])
    run.crank()


def delete_the_job(run: Run) -> None:
    """A foreign ``qdel``: TERM, and KILL after the grace."""
    run.cluster.check("qdel", run.task())


def delete_by_force(run: Run) -> None:
    """``qdel -W force``: nothing is told, nobody is left, and somebody comes back."""
    run.cluster.check("qdel", "-W", "force", run.task())
    run.crank()


def rerun(run: Run) -> None:
    """An operator's ``qrerun``: TERM, KILL after the grace, and the same id runs again."""
    run.cluster.check("qrerun", run.task())


EVERYWHERE = [
    (kill_a_rank, {"lost"}),
    (kill_the_worker, {"lost", "preempted"}),
    (kill_everything, {"lost", "preempted", "node_fail", "canceled"}),
    (delete_the_job, {"preempted"}),
    (delete_by_force, {"lost", "preempted", "canceled"}),
]


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("mode", ["single", "rerun", "arrays"])
@pytest.mark.parametrize(
    ("disturb", "reasons"), EVERYWHERE, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_disturbed_trial_ends_with_the_bits_of_an_undisturbed_one(
    lab: PbsLab, disturb: Callable[[Run], None], reasons: set[str], mode: str, nodes: int
) -> None:
    wanted = reference(lab, 2, nodes)
    step = dice(disturb.__name__).randrange(6, 20)
    run = lab.run(sized(2, nodes), mode, launcher=launcher(nodes), pace=PACE)
    run.until_batches(step)
    run.faster(LATE)
    disturb(run)
    run.until_attempts(2)
    run.faster()
    run.wait()
    assert set(run.reasons()[:-1]) <= reasons, run.story()
    assert run.reasons()[-1] == "completed", run.story()
    same_bits(run.digest(), wanted, run.story())


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("mode", ["rerun", "arrays"])
def test_a_job_that_the_server_runs_again_goes_on_under_its_id(
    lab: PbsLab, mode: str, nodes: int
) -> None:
    wanted = reference(lab, 2, nodes)
    run = lab.run(sized(2, nodes), mode, launcher=launcher(nodes), pace=PACE)
    run.until_batches(8)
    run.faster(LATE)
    job = run.task()
    rerun(run)
    run.until_attempts(2)
    assert run.task() == job, run.story()
    run.faster()
    run.wait()
    assert set(run.reasons()[:-1]) <= {"preempted"}, run.story()
    same_bits(run.digest(), wanted, run.story())


@pytest.mark.parametrize("disturb", [kill_a_rank, delete_the_job], ids=lambda one: one.__name__)
def test_ranks_that_pbsdsh_starts_have_the_same_bits(
    lab: PbsLab, disturb: Callable[[Run], None]
) -> None:
    wanted = reference(lab, 2, 2)
    run = lab.run(sized(2, 2), launcher="pbsdsh", pace=PACE)
    run.until_batches(8)
    assert len(set(run.claim().nodes)) == 2
    run.faster(LATE)
    disturb(run)
    run.until_attempts(2)
    run.faster()
    run.wait()
    assert set(run.reasons()[:-1]) <= {"lost", "preempted"}, run.story()
    same_bits(run.digest(), wanted, run.story())


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("mode", ["single", "rerun", "arrays"])
def test_a_chain_of_walltimes_ends_with_the_same_bits(lab: PbsLab, mode: str, nodes: int) -> None:
    wanted = reference(lab, 2, nodes)
    # of it the last 20 s are to leave in, and a busy host may need as many to start
    short = sized(2, nodes, resources={"walltime_s": 80})
    run = lab.run(short, mode, launcher=launcher(nodes), pace=LATE)
    run.until_attempts(2)
    run.until_training()
    run.faster()
    run.wait()
    assert run.reasons()[0] == "walltime", run.story()
    same_bits(run.digest(), wanted, run.story())
