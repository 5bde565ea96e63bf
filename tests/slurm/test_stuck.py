"""Jobs that a real Slurm holds or never starts."""

from __future__ import annotations

import dataclasses

import pytest

from hpcdet.read.views import views
from hpcdet.schedulers.common.base import Job
from hpcdet.schedulers.slurm.slurm import SlurmScheduler
from hpcdet.store.folder.records import Intent
from tests import experiments
from tests.cluster.configuration import NODES
from tests.experiments import parent, strike, until
from tests.slurm_runs import Lab, hpcdet, undisturbed

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm-b")]


def test_a_launch_that_fails_costs_its_node_and_nothing_else(lab_b: Lab) -> None:
    """The Prolog of a node fails when a task starts there that was requeued: Slurm drains the node,
    and holds the task for ever. Its user comes back."""
    cluster = lab_b.cluster
    cluster.reconfigure(dataclasses.replace(cluster.options, prolog=True))
    run = lab_b.submit(experiments.config(60), pace=0.1, site={"python": lab_b.fake})
    run.until_attempts(1)
    bad = run.claim().nodes[0]
    cluster.launches_fail(bad)
    try:
        worker = run.worker_pid()
        killed = [parent(worker), worker]
        cluster.check("scontrol", "requeue", run.task())
        strike(killed)  # a script that ends by itself sets Requeue=0, and nothing is held
        held = "launch_failed_requeued_held"
        until(lambda: any(job["Reason"] == held for job in run.tasks()), run.story)
        resumed = hpcdet("resume", run.paths.id)
        assert resumed.returncode == 0, resumed
        run.until_attempts(2)
    finally:
        cluster.launches_fail(bad, on=False)
    run.faster()
    run.wait()
    assert run.digest() == undisturbed(60)
    assert run.claim().nodes != [bad], run.story()
    assert not [job for job in run.tasks() if job["JobState"] == "PENDING"]


def test_what_no_partition_can_give_is_told_from_what_waits_for_its_nodes(lab_b: Lab) -> None:
    """Slurm says PartitionNodeLimit of both, by its manual."""
    cluster = lab_b.cluster
    batch = "PartitionName=batch"

    def submit(nodes: int) -> str:
        argv = ("sbatch", "--parsable", "-N", str(nodes), "-o", "/dev/null", "--wrap", "true")
        return cluster.check(*argv).strip()

    def kinds() -> list[str]:
        found = SlurmScheduler(lab_b.site()).query([Job(job, 1) for job in jobs])
        return [found[job][0].wait.kind for job in jobs]

    jobs = [submit(len(NODES) + 1)]
    cluster.check("scontrol", "update", batch, "MaxNodes=1")
    try:
        jobs.append(submit(2))
        until(lambda: kinds() == ["never", "never"], lambda: cluster.check("squeue"))
        # a partition of which no node is left, as Slurm may see it
        cluster.check("scontrol", "update", batch, "MaxNodes=UNLIMITED")
        cluster.check(
            "scontrol", "update", f"NodeName={','.join(NODES)}", "State=DRAIN", "Reason=t"
        )
        until(lambda: kinds() == ["never", "outage"], lambda: cluster.check("squeue"))
    finally:
        cluster.check("scontrol", "update", batch, "MaxNodes=UNLIMITED")


def test_a_time_limit_above_the_partitions_is_told_and_can_be_repaired(lab_b: Lab) -> None:
    """``short`` allows five minutes; Slurm takes the job, and never starts it."""
    values = experiments.config(20, resources={"resource_pool": "short", "walltime_s": 3600})
    run = lab_b.submit_fakes(values)
    run.crank()
    # that it waits is said before it is taken out of the queue
    until(lambda: views.status(run.paths).state == "PAUSED", run.story)
    told = hpcdet("status", run.paths.id).stdout
    assert "PartitionTimeLimit" in told and "--set resources.walltime_s=LESS" in told
    said = hpcdet("explain", run.paths.id).stdout
    assert f"hpcdet resume {run.paths.id} --set resources.walltime_s=LESS" in said, said
    until(lambda: all(job["JobState"] != "PENDING" for job in run.tasks()), run.story)
    mended = hpcdet("resume", run.paths.id, "--set", "resources.walltime_s=240")
    assert mended.returncode == 0, mended.stderr
    run.wait()
    assert run.digest() == undisturbed(20)
    first, *_, last = (Intent.read(run.paths.intent(n)) for n in run.paths.submissions())
    assert first is not None and last is not None and last.number > first.number
