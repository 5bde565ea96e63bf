"""Bits on the private Slurm: however a trial is disturbed, it ends in the same state.

Real ranks, over several nodes. Each test disturbs a trial at a random step in one way; the
reference is the same trial undisturbed, of ranks that import everything anew; those of the
others are forked from a nursery, and with ``HPCDET_COLD_BITS`` once more not.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest

from hpcdet.store.folder.records import WorkerEnd
from hpcdet.store.fs import journal
from tests import dose
from tests.experiments import parent, processes_of, rank_pids, same_bits, strike, worker_pids
from tests.slurm_runs import Lab, Run, config, urgent

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]

PACE = 0.2
"""Seconds per batch until the disturbance; a trial is 40 batches."""

_reference: list[str] = []


def trial(**changes: Any) -> dict[str, Any]:
    """A trial of two ranks on each of two nodes, which share the memory of their job."""
    resources = {"slots_per_trial": 4, "slots_per_node": 2, "memory_per_slot": None}
    return config(resources=resources, **changes)


def reference(lab: Lab) -> str:
    """Digest of the undisturbed trial, of cold ranks; one run serves all tests."""
    if not _reference:
        run = lab.submit(trial(worker={"warm": "off"}))
        run.wait()
        assert run.reasons() == ["completed"], run.story()
        _reference.append(run.digest())
    return _reference[0]


def preempt(run: Run) -> None:
    """Row 4: TERM, and KILL a few seconds later; the task comes back by itself."""
    with urgent(run.cluster, run.claim().nodes):
        run.until_ended(1)


def requeue(run: Run) -> None:
    """Row 6: asked for twice, the second time while the first is at work or pending."""
    run.cluster.check("scontrol", "requeue", run.task())
    run.cluster.call("scontrol", "requeue", run.task())


def kill_a_rank(run: Run) -> None:
    """Row 9: the step fails at once, and the same worker goes on with the trial."""
    strike(rank_pids(run.paths)[-1:])


def kill_the_worker(run: Run) -> None:
    """The wrapper in the batch script requeues the task of a worker that was killed."""
    strike(worker_pids(run.paths)[:1])


def kill_the_searcher(run: Run) -> None:
    """A worker takes over the lease of a daemon that is gone without a word."""
    strike([run.crank()])


def kill_everything(run: Run) -> None:
    """Row 9: ranks, workers, batch scripts and searcher at once; then somebody comes back."""
    run.crank()
    scripts = processes_of(run.paths, "hpcdet.worker")
    parents = [parent(pid) for pid in scripts]
    strike([*run.started, *parents, *scripts, *rank_pids(run.paths)])
    run.crank()


def lose_a_node(run: Run) -> None:
    """Row 9: the scheduler declares a node down while its processes may live on."""
    node = run.claim().nodes[-1]
    run.cluster.check("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")


def tell_the_script(run: Run) -> None:
    """Row 8: TERM for the batch script's shell alone does nothing at all."""
    run.cluster.check("scancel", "--batch", "--signal=TERM", run.task())


def speaks_pmix(lab: Lab) -> bool:
    """Whether this Slurm can start ranks of the machine's Open MPI."""
    tried = lab.cluster.call("srun", "--mpi=pmix", "--nodes=1", "--chdir=/", "true")
    return tried.returncode == 0 and shutil.which("mpirun") is not None


@pytest.mark.parametrize("warm", ["auto", "off"] if dose.COLD_BITS else ["auto"])
@pytest.mark.parametrize(
    ("disturb", "reasons", "mode"),
    [
        (preempt, {"preempted"}, "shared"),
        (requeue, {"preempted"}, "per_trial"),
        (kill_a_rank, {"lost"}, "shared"),
        (kill_the_worker, {"lost", "preempted"}, "per_trial"),
        (kill_the_searcher, set(), "shared"),
        (kill_everything, {"lost", "preempted"}, "per_trial"),
        (lose_a_node, {"lost", "preempted", "node_fail"}, "shared"),
        (tell_the_script, set(), "per_trial"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_disturbed_trial_ends_with_the_bits_of_an_undisturbed_one(
    lab: Lab, disturb: Callable[[Run], None], reasons: set[str], mode: str, warm: str
) -> None:
    wanted = reference(lab)
    step = dose.dice(disturb.__name__).randrange(6, 20)
    run = lab.submit(trial(worker={"mode": mode, "warm": warm}), pace=PACE)
    run.until_batches(step)
    cold = [line["why"] for line in run.notes("cold")]
    assert bool(cold) == (warm == "off"), (cold, run.story())
    disturb(run)
    if reasons:
        run.until_attempts(2)
    run.faster()
    run.wait()
    same_bits(run.digest(), wanted, run.story())
    ends = run.reasons()
    assert ends[-1] == "completed", run.story()
    assert set(ends[:-1]) <= reasons, run.story()
    assert bool(ends[:-1]) == bool(reasons), run.story()


def test_a_trial_takes_the_nodes_that_there_are_and_keeps_its_bits(lab: Lab) -> None:
    """Two ranks on each of two nodes until one is lost, then on one; beside two ranks over MPI
    that never were more, started by srun, where it speaks PMIx."""
    exact = {"elastic": "exact", "virtual_ranks": 4}
    pair = {"slots_per_trial": 2, "nodes": 1, "slots_per_node": 2, "exclude_nodes": ["n1", "n2"]}
    pmix = speaks_pmix(lab)
    over = {"backend": "mpi" if pmix else "gloo"}
    once = lab.submit(
        config(resources=pair, reproducibility=exact, distributed=over),
        site={"launcher": {"kind": "srun", "args": ["--mpi=pmix"] if pmix else []}},
    )
    most = {"slots_per_trial": 4, "slots_per_node": 2, "exclude_nodes": ["n3", "n4"]}
    run = lab.submit(
        config(resources={**most, "min_slots_per_trial": 2}, reproducibility=exact), pace=PACE
    )
    run.until_batches(6)
    node = run.claim().nodes[-1]  # down, and not to be used once it is up again
    for state in ("DRAIN", "DOWN"):
        run.cluster.check("scontrol", "update", f"NodeName={node}", f"State={state}", "Reason=test")
    run.until_attempts(2)
    run.faster()
    run.wait()
    once.wait()
    attempts = run.paths.trial(1).attempts()
    worlds = [journal.read(attempt.journal)[0]["world"] for attempt in attempts]
    assert worlds[0] == 4 and set(worlds[1:]) == {2}, run.story()
    assert once.reasons() == ["completed"], once.story()
    same_bits(run.digest(), once.digest(), run.story())
    if not pmix:
        pytest.skip("not compared with a digest over MPI: srun starts no ranks by --mpi=pmix here")


def test_a_trial_grows_once_a_node_is_free_and_keeps_its_bits(lab: Lab) -> None:
    """One of its two nodes is taken at first. The job that follows waits for the end of the first
    one; else it would begin on the free node alone."""
    need = {"slots_per_trial": 4, "slots_per_node": 2, "exclude_nodes": ["n3", "n4"]}
    exact = {"elastic": "exact", "virtual_ranks": 4}
    undisturbed = lab.submit(config(resources=need, reproducibility=exact))
    undisturbed.wait()
    grows = {**need, "min_slots_per_trial": 2, "regrow_min_s": 3}
    with urgent(lab.cluster, ["n2"]) as taken:
        run = lab.submit(config(resources=grows, reproducibility=exact), pace=PACE)
        run.until_batches(6)
        tasks = {job["JobId"] for job in run.tasks()}
        lab.cluster.check("scancel", taken)
        run.until_attempts(2)
    run.faster()
    run.wait()
    attempts = run.paths.trial(1).attempts()
    worlds = [journal.read(attempt.journal)[0]["world"] for attempt in attempts]
    assert worlds == [2, 4], run.story()
    assert run.reasons() == ["resized", "completed"], run.story()
    end = WorkerEnd.read(run.paths.worker(1, 0, 0).end)
    assert end is not None and end.why == "resized", run.story()
    assert len({job["JobId"] for job in run.tasks()} - tasks) == 1, run.story()
    same_bits(run.digest(), undisturbed.digest(), run.story())
