"""Slurm in a cloud: nodes that Slurm makes for a job, and that their owner takes back."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Intent
from hpcdet.store.fs import files
from tests import experiments
from tests.cluster import slurm as private
from tests.cluster.configuration import Options
from tests.experiments import until
from tests.slurm_runs import Lab, Run, config, hpcdet, undisturbed
from tests.slurm_sites import newcomer

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm-c")]

BATCHES = 300


@pytest.fixture
def cloud() -> Iterator[private.SlurmCluster]:
    """A Slurm whose nodes do not exist until a job needs them: none has been made yet."""
    if why := private.why_not(accounting=False):
        pytest.skip(why)
    cluster = private.SlurmCluster(f"c-{os.getpid()}", Options(accounting=False, cloud=True))
    cluster.up(owner=os.getpid())
    try:
        yield cluster
    finally:
        cluster.down()


@pytest.fixture
def lab_in_cloud(
    cloud: private.SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Lab]:
    lab = Lab(cloud, tmp_path, monkeypatch)
    yield lab
    lab.end()
    (cloud.root / "no-instances").unlink(missing_ok=True)  # who makes instances waits for that


def submit(lab: Lab) -> Run:
    """One trial of 2 nodes with a fake rank on each, in a queue of instances that may be taken."""
    pace = lab.folder / "pace"
    experiments.set_pace(pace, 0.1)
    values = config(
        searcher={"max_length": {"batches": BATCHES}},
        environment={"environment_variables": {"PACE": str(pace)}},
        data={"every": 10},
        resources={"resource_pool": "batch", "preemptible": True},
    )
    files.replace(lab.model / "c.yaml", yaml.safe_dump(values).encode())
    site = newcomer(
        lab,
        extends="aws-parallelcluster",
        python=lab.fake,
        partitions={"batch": {"preemptible": True}},
    )
    made = hpcdet("submit", str(lab.model / "c.yaml"), "--site", str(site), "--no-test", "-o", "id")
    assert made.returncode == 0, made
    run = Run(lab.cluster, ExperimentPaths(lab.root / made.stdout.strip()), pace)
    lab.runs.append(run)
    return run


def test_nodes_that_come_and_go(lab_in_cloud: Lab) -> None:
    lab = lab_in_cloud
    hold = lab.cluster.root / "no-instances"
    hold.touch()
    run = submit(lab)  # nodes that do not exist yet are capacity: it is not refused
    run.crank()

    def waits() -> bool:
        [item] = json.loads(hpcdet("status", run.paths.id, "-o", "json").stdout)["items"]
        return [one["reason"] for one in item["waits"]] == ["CONFIGURING"]

    until(waits, run.story, 120)
    assert {job["JobState"] for job in run.tasks()} == {"CONFIGURING"}
    hold.unlink()
    run.until_batches(40)
    node = run.claim().nodes[-1]
    lab.cluster.reclaim(node)
    run.until_attempts(2)
    run.faster()
    run.wait()
    assert run.reasons() == ["preempted", "completed"]
    assert run.digest() == undisturbed(BATCHES)
    intents = [Intent.read(run.paths.intent(number)) for number in run.paths.submissions()]
    assert all(intent is not None and not intent.exclude for intent in intents)
