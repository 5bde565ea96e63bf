"""Jobs of more nodes than a trial has, on the private Slurm: several trials in each."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hpcdet.store.folder.records import Claim, WorkerClaim, WorkerEnd
from hpcdet.store.fs import journal
from tests import experiments
from tests.experiments import until
from tests.slurm_runs import Lab, Run, config, undisturbed

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]

ON_THE_FIRST_NODE_ONLY = """#!/bin/bash
list=${SLURM_JOB_NODELIST#n[}
case "$2 $SLURMD_NODENAME" in
"hpcdet.attempt n${list%%[-,]*}") ;;
hpcdet.attempt*) exit 127 ;;
esac
exec FAKE "$@"
"""
"""An interpreter without which launches fail on all nodes of a job but the first."""


def wide(trials: int = 4, **changes: object) -> dict[str, object]:
    """Trials of one node with two ranks, two of them in each job of two nodes."""
    return experiments.config(
        200,
        trials=trials,
        ranks=2,
        searcher={"max_concurrent_trials": 2},
        resources={"walltime_s": 3600},
        **{"worker": {"node_groups": 2, "idle_s": 20}, **changes},
    )


def nodes(run: Run, trial: int) -> list[list[str]]:
    claims = [Claim.read(one.claim) for one in run.paths.trial(trial).attempts()]
    return [claim.nodes for claim in claims if claim is not None]


def test_each_trial_has_its_own_nodes_and_all_come_back_together(lab: Lab) -> None:
    run = lab.submit(wide(), pace=0.2, site={"python": lab.fake})
    for trial in (1, 2):
        run.until_attempts(1, trial)
    task = run.task(1)
    (worker,) = run.paths.workers()
    claim = WorkerClaim.read(worker.claim)
    assert claim is not None and len(claim.nodes) == 2
    assert [nodes(run, 1)[0], nodes(run, 2)[0]] == [claim.nodes[:1], claim.nodes[1:]]
    steps = lab.cluster.check("squeue", "--steps", "--noheader", "--format=%j %N").splitlines()
    assert {f"1-1 {claim.nodes[0]}", f"2-1 {claim.nodes[1]}"} <= {one.strip() for one in steps}
    lab.cluster.check("scontrol", "requeue", task)
    for trial in (1, 2):
        run.until_attempts(2, trial)
    run.faster()
    run.wait()
    assert [run.reasons(trial) for trial in (1, 2)] == [["preempted", "completed"]] * 2, run.story()
    assert [run.digest(trial) for trial in (1, 2, 3, 4)] == [
        undisturbed(200, trial) for trial in (1, 2, 3, 4)
    ]
    (job,) = run.tasks()  # one place in the queue served them all
    assert (job["Restarts"], job["NumNodes"]) == ("1", "2")


def test_a_bad_node_closes_its_group_and_the_others_train_on(lab: Lab, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(ON_THE_FIRST_NODE_ONLY.replace("FAKE", lab.fake))
    python.chmod(0o700)
    run = lab.submit(wide(trials=3), site={"python": str(python)})
    run.wait()
    (worker,) = run.paths.workers()
    until(worker.end.exists, run.story)
    claim, end = WorkerClaim.read(worker.claim), WorkerEnd.read(worker.end)
    assert claim is not None and end is not None and end.why == "closed"
    good, bad = claim.nodes
    ends = [
        (reason, where)
        for trial in (1, 2, 3)
        for reason, [where] in zip(run.reasons(trial), nodes(run, trial), strict=True)
    ]
    assert ends.count(("launch_failed", bad)) == 2, run.story()
    assert ends.count(("completed", good)) == 3 and len(ends) == 5
    assert [run.digest(trial) for trial in (1, 2, 3)] == [undisturbed(200, t) for t in (1, 2, 3)]


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun on this machine")
def test_mpirun_starts_ranks_on_the_nodes_of_each_group(lab: Lab) -> None:
    """Two groups of two nodes; the worker is on the first one, and starts the others' as well."""
    options = ["--allow-run-as-root", "--mca", "btl", "self,tcp"]
    values = config(
        hyperparameters={"learning_rate": {"type": "categorical", "vals": [0.01, 0.02]}},
        searcher={"name": "grid", "max_trials": 2, "max_concurrent_trials": 2},
        resources={"slots_per_trial": 4, "nodes": 2, "slots_per_node": 2, "memory_per_slot": None},
        worker={"node_groups": 2},
    )
    run = lab.submit(values, site={"launcher": {"kind": "mpirun", "args": options}})
    run.wait()
    assert [run.reasons(trial) for trial in (1, 2)] == [["completed"]] * 2, run.story()
    (worker,) = run.paths.workers()
    claim = WorkerClaim.read(worker.claim)
    assert claim is not None
    assert [nodes(run, 1)[0], nodes(run, 2)[0]] == [claim.nodes[:2], claim.nodes[2:]]
    argv = [line["argv"] for line in journal.read(worker.journal) if line["kind"] == "launched"]
    hosts = [words[words.index("-host") + 1] for words in argv]
    groups = (claim.nodes[:2], claim.nodes[2:])
    assert hosts == [",".join(f"{node}:2" for node in group) for group in groups]
