"""Interactive tasks as jobs of the private Slurm: codes, shells in steps, servers and tunnels."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcdet.tasks.folder import task_folder
from hpcdet.tasks.folder.task_folder import TaskEnded, TaskPaths
from tests.experiments import until
from tests.interactive import get, in_terminal, no_jupyter, no_sshd, private_sshd, tunnel
from tests.slurm_runs import Lab, config, hpcdet
from tests.slurm_sites import write_site

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]


@pytest.fixture
def at(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A folder whose tasks go to the private Slurm."""
    monkeypatch.setenv("HPCDET_SITE", str(write_site(lab.folder, lab.cluster)))
    monkeypatch.chdir(lab.folder)
    return lab


def items(*words: str) -> list[dict[str, Any]]:
    done = hpcdet(*words, "-o", "json")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["items"]
    return found


def started(at: Lab, kind: str, *words: str) -> TaskPaths:
    """Start a task and wait until it runs, or serves."""
    done = hpcdet(kind, "start", "-o", "id", *words)
    assert done.returncode == 0, done.stderr
    found = task_folder.task(done.stdout.strip(), at.root)
    until(found.started.exists, lambda: str(items(kind, "ls")), 240)
    return found


def ended(found: TaskPaths) -> TaskEnded:
    until(found.ended.exists, lambda: str(items(found.kind, "ls")), 240)
    record = TaskEnded.read(found.ended)
    assert record is not None
    return record


def job_of(at: Lab, id: str) -> dict[str, str]:
    """A task's job as Slurm shows it."""
    [job] = [job for job in at.cluster.jobs() if job["JobName"] == id]
    return job


def shell(id: str, said: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "hpcdet", "shell", "open", id]
    return subprocess.run(argv, input=said, capture_output=True, text=True, timeout=240)


def test_a_command_gets_what_it_asks_for_and_its_code_comes_back(at: Lab) -> None:
    script = "echo $SLURM_CPUS_ON_NODE $SLURM_JOB_NAME; exit 3"
    done = hpcdet("run", "--wait", "--slots", "2", "--time", "10m", "--", "sh", "-c", script)
    assert done.returncode == 3, done.stderr
    [one] = items("run", "ls")
    assert done.stdout == f"2 {one['id']}\n"
    assert (one["state"], one["exit_code"]) == ("ERROR", 3)
    job = job_of(at, one["id"])
    assert (job["JobName"], job["TimeLimit"], job["Partition"]) == (one["id"], "00:10:00", "batch")
    assert "sh" not in job["Comment"]  # of the command nothing is shown to others


def test_what_a_partition_does_not_allow_is_refused_by_the_name_of_the_flag(at: Lab) -> None:
    for words, said in (
        (["--partition", "short", "--time", "1h"], "--time: 0-01:00:00 is over the limit"),
        (["--partition", "nowhere"], "--partition: there is no partition nowhere"),
    ):
        done = hpcdet("run", *words, "--", "true")
        assert done.returncode == 4 and said in done.stderr, done.stderr
    done = hpcdet("run", "-o", "id", "--partition", "short", "--", "true")
    assert job_of(at, done.stdout.strip())["TimeLimit"] == "00:05:00", done.stderr


def test_what_waits_says_why_and_what_is_ended_by_others_is_said(at: Lab) -> None:
    wide = started(at, "run", "--slots", "8", "--", "sleep", "600")
    rest = [started(at, "run", "--slots", "8", "--", "sleep", "600") for _ in range(3)]
    done = hpcdet("run", "-o", "id", "--slots", "8", "--", "sleep", "600")
    waits = task_folder.task(done.stdout.strip(), at.root)

    def state() -> tuple[str, str]:
        one = items("run", "ls")[-1]
        return one["state"], one["reason"]

    until(lambda: state() in (("PENDING", "Resources"), ("PENDING", "Priority")))
    assert hpcdet("run", "stop", waits.id).returncode == 0
    until(lambda: state() == ("CANCELED", "stopped"))
    assert not waits.started.exists()
    job = next(one["job"] for one in items("run", "ls") if one["id"] == wide.id)
    at.cluster.check("scancel", job)
    assert ended(wide).reason == "canceled"
    assert hpcdet("run", "stop", *(one.id for one in rest)).returncode == 0
    assert [ended(one).reason for one in rest] == ["stopped"] * 3
    until(lambda: not any(job["JobState"] == "RUNNING" for job in at.cluster.jobs()))


def test_a_shell_is_a_step_of_its_job_with_all_that_it_has(at: Lab) -> None:
    found = started(at, "shell", "--slots", "3")
    done = shell(found.id, "echo $SLURM_JOB_ID $SLURM_CPUS_ON_NODE; pwd; exit 7\n")
    assert done.returncode == 7, done.stderr
    [one] = items("shell", "ls")
    job = job_of(at, found.id)
    assert done.stdout == f"{job['JobId']} 3\n{at.folder}\n" and one["job"] in done.stderr
    argv = [sys.executable, "-m", "hpcdet", "shell", "open", found.id]
    code, shown = in_terminal(argv, "sleep 600 & jobs; kill %1; exit 9\n")
    assert code == 9 and "Running" in shown, shown
    assert hpcdet("shell", "stop", found.id).returncode == 0
    assert ended(found).reason == "stopped"


def test_a_shell_beside_a_trial_says_what_it_shares_and_harms_nothing(at: Lab) -> None:
    values = config(resources={"slots_per_trial": 1, "nodes": 1, "slots_per_node": 1})
    run = at.submit(values, pace=0.1, site={"python": at.fake})
    run.until_training()
    done = shell(f"{run.paths.id}/1", "echo $SLURM_JOB_ID $HPCDET_JOINED $PACE; pwd\n")
    assert done.returncode == 0, done.stderr
    [job] = run.tasks()
    name = f"{run.paths.id}/1.1"
    assert done.stdout.splitlines() == [
        f"{job['JobId']} {name} {run.pace}",
        str(run.paths.code),
    ]
    assert f"{name}: job {run.task()} on {run.claim().nodes[0]}" in done.stderr
    assert "shares the 1 slots of the training" in done.stderr
    run.faster()
    run.wait()
    assert run.reasons() == ["completed"]
    assert "no attempt of it runs" in shell(f"{run.paths.id}/1", "").stderr


@contextlib.contextmanager
def relayed(line: str, entrance: Path, environ: dict[str, str]) -> Iterator[Path]:
    """The line of a relay as a user runs it, with a socket on this machine in place of a port."""
    words = shlex.split(line)
    place = words.index("-L") + 1
    _, _, target = words[place].partition(":")
    words[place] = f"{entrance}:{target}"
    process = subprocess.Popen(words, env={**os.environ, **environ}, stdin=subprocess.PIPE)
    try:
        until(lambda: Path(target).exists() or process.poll() is not None, timeout=240)
        assert process.poll() is None
        yield entrance
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(timeout=120)
        until(lambda: not Path(target).exists())


@pytest.mark.skipif(bool(no_sshd()), reason=no_sshd())
@pytest.mark.parametrize("way", ["node", "reverse", "relay"])
def test_each_way_leads_to_a_tensorboard_on_a_node(
    at: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    (tmp_path / "runs").mkdir()
    with private_sshd(tmp_path / "sshd", SLURM_CONF=str(at.cluster.conf)) as sshd:
        path = f"{sshd.command}:{at.cluster.environment()['PATH']}"
        changes = {"tunnel": way, "env": {"PATH": path}}
        monkeypatch.setenv("HPCDET_SITE", str(write_site(at.folder, at.cluster, **changes)))
        monkeypatch.setenv("PATH", path)
        found = started(at, "tensorboard", str(tmp_path / "runs"), "--wait")
        token = found.token.read_text()
        line, address, _ = hpcdet("tensorboard", "url", found.id).stdout.splitlines()
        assert address.startswith("http://localhost:6006/?token=") and token not in line
        [item] = items("tensorboard", "ls")
        # the login node and all nodes are one host here, under names that only ssh.conf knows
        assert (f"@{item['node']}" in line) == (way == "node")
        environ = {"PATH": path}
        entrance = tmp_path / "laptop"
        with (
            relayed(line, entrance, environ)
            if way == "relay"
            else tunnel(shlex.split(line), sshd, entrance) as _
        ):
            until(lambda: answers(entrance, token), lambda: found.output.read_text(), 120)
            assert get(entrance, "/data/runs")[0] == 403
        assert hpcdet("tensorboard", "stop", found.id).returncode == 0
        assert ended(found).reason == "stopped"


def answers(entrance: Path, token: str) -> bool:
    with contextlib.suppress(OSError):
        return get(entrance, "/data/runs", token)[0] == 200
    return False


@pytest.mark.skipif(bool(no_jupyter()), reason=no_jupyter())
def test_a_notebook_serves_on_a_node_and_ends_when_it_is_stopped(at: Lab) -> None:
    found = started(at, "notebook", "--wait")
    [item] = items("notebook", "ls")
    assert item["node"] in ("n1", "n2", "n3", "n4") and item["left_s"] > 0
    assert get(item["socket"], "/api/status", found.token.read_text())[0] == 200
    assert get(item["socket"], "/api/status")[0] == 403
    assert hpcdet("notebook", "stop", found.id).returncode == 0
    assert ended(found).reason == "stopped"
    until(lambda: not Path(item["socket"]).parent.exists())
