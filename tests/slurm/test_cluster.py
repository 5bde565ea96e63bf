"""The private Slurm itself: what the tests on it rest on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import processes
from tests.cluster import slurm as private
from tests.cluster.configuration import Options
from tests.cluster.slurm import SlurmCluster

pytestmark = [pytest.mark.slurm]


def _script(folder: Path, body: str) -> str:
    path = folder / "job.sh"
    path.write_text(f"#!/bin/bash\n{body}\n")
    return str(path)


def _state(cluster: SlurmCluster, job: str) -> dict[str, str]:
    return next(row for row in cluster.jobs() if row["JobId"] == job)


@pytest.mark.xdist_group("slurm")
def test_steps_span_nodes_and_preempted_jobs_come_back(slurm: SlurmCluster, tmp_path: Path) -> None:
    answer = slurm.check(
        *("srun", "-N2", "--ntasks-per-node=2"),
        *("bash", "-c", "echo $SLURMD_NODENAME $SLURM_PROCID/$SLURM_NTASKS"),
    )
    ranks = sorted(line.split()[1] for line in answer.splitlines())
    assert ranks == ["0/4", "1/4", "2/4", "3/4"]
    assert len({line.split()[0] for line in answer.splitlines()}) == 2

    out = tmp_path / "out"
    script = _script(tmp_path, "echo run ${SLURM_RESTART_COUNT:-0}; exec srun sleep 600")
    job = slurm.check(
        *("sbatch", "--parsable", "--exclusive", "-N4", "--open-mode=append", "-o", str(out)),
        *("-D", "/", script),
    ).strip()
    processes.until(lambda: out.exists() and "run 0" in out.read_text(), "first run")
    assert slurm.check("srun", "-p", "urgent", "-N4", "--exclusive", "true") == ""
    processes.until(lambda: "run 1" in out.read_text(), "second run")
    assert _state(slurm, job)["Restarts"] == "1"

    def row() -> list[str]:
        answer = slurm.check("sacct", "-D", "-X", "-n", "-P", "-j", job, "-o", "State")
        return answer.split()

    processes.until(lambda: row() == ["PREEMPTED", "RUNNING"], "both runs in accounting")


@pytest.mark.xdist_group("slurm-b")
def test_limits_and_calls_are_those_asked_for(slurm_b: SlurmCluster, tmp_path: Path) -> None:
    slurm_b.reconfigure(Options(max_array=5, send_user_signal=True))
    script = _script(tmp_path, "sleep 600")
    env = slurm_b.environment()

    def sbatch(*words: str) -> subprocess.CompletedProcess[str]:
        argv = ["sbatch", "--parsable", "-o", "/dev/null", *words, script]
        return subprocess.run(argv, env=env, capture_output=True, text=True)

    assert sbatch("--array=0-4").returncode == 0
    refused = sbatch("--array=0-5")
    assert "Invalid job array specification" in refused.stderr
    assert "preempt_send_user_signal" in slurm_b.check("scontrol", "show", "config")
    said = [line.split(" ", 1)[1] for line in slurm_b.calls.read_text().splitlines()]
    assert [words.split()[0] for words in said[-2:]] == ["sbatch", "sbatch"]
    assert "--array=0-5" in said[-1]


@pytest.mark.xdist_group("slurm-b")
def test_nothing_is_left_of_a_cluster_that_ends_or_whose_owner_died(tmp_path: Path) -> None:
    reason = private.why_not(accounting=False)
    if reason:
        pytest.skip(reason)
    owner = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    cluster = SlurmCluster(f"c-{os.getpid()}", Options(accounting=False))
    try:
        cluster.up(owner=owner.pid)
        pid = tmp_path / "pid"
        script = _script(tmp_path, f"setsid sleep 600 & echo $! >{pid}; exec srun sleep 600")
        cluster.check("sbatch", "-N2", "-o", "/dev/null", script)
        processes.until(lambda: pid.exists() and pid.read_text().endswith("\n"), "job")
        orphan = int(pid.read_text())
        assert orphan in processes.of_cluster(cluster.root)
        private.sweep()
        assert cluster.name in private.names()

        owner.kill()
        owner.wait()
        private.sweep()
        assert cluster.name not in private.names()
        assert processes.of_cluster(cluster.root) == []
        assert processes.started_at(orphan) == ""
    finally:
        owner.kill()
        owner.wait()
        cluster.down()
