"""A new site as a sysadmin brings it up: drafted from the cluster, checked, proven by a job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from hpcdet.site_files import load_site
from tests.slurm_runs import Lab, hpcdet

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]


def test_a_draft_is_a_site_that_a_job_proves(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(lab.folder / "config"))
    monkeypatch.setenv("SCRATCH", str(lab.folder))
    done = hpcdet("site", "init")
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.strip())
    assert path == lab.folder / "config" / "hpcdet" / "sites" / f"{lab.cluster.name}.yaml"
    text = path.read_text()
    drafted = load_site.load(str(path))
    assert drafted.default_partition == "batch"
    parts = drafted.partitions
    assert parts.keys() == {"batch", "patient", "cancel", "short", "urgent"}
    assert parts["short"].max_walltime_s == 300 and parts["batch"].max_walltime_s is None
    asked = text.partition("  short:")[2]
    assert "# preemptible: true" in asked.partition("  urgent:")[0]
    assert "preemptible" not in asked.partition("  urgent:")[2]
    assert {part.cpus_per_node for part in parts.values()} == {8}
    assert drafted.paths.scratch == "$SCRATCH" and "4 nodes, 8 cores, 8000 MiB" in text

    # it is in force at once, and a draft is never laid over a file
    [found] = json.loads(hpcdet("site", "detect", "-o", "json").stdout)["items"]
    assert found["id"] == lab.cluster.name and "ClusterName" in found["reason"]
    done = hpcdet("site", "init")
    assert done.returncode == 2 and "already" in done.stderr
    assert path.read_text() == text
    other = lab.folder / "other.yaml"
    assert hpcdet("site", "init", "delta", "--out", str(other)).stdout.strip() == str(other)
    assert yaml.safe_load(other.read_text())["name"] == "delta"
    assert hpcdet("site", "init", "--out", "-").stdout.startswith(f"# {lab.cluster.name}: ")

    lint = json.loads(hpcdet("site", "lint", "-o", "json").stdout)["items"]
    assert {(item["site"], item["bash"]) for item in lint} == {(lab.cluster.name, "ok")}
    env = {"PATH": lab.cluster.environment()["PATH"], "HPCDET_CACHE": str(lab.folder / "cache")}
    completed = yaml.safe_load(text) | {"env": env, "limits": {"poll_min_s": 1}}
    path.write_text(yaml.safe_dump(completed))
    done = hpcdet("site", "check", "--job", "--timeout", "240", "-o", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    items = json.loads(done.stdout)["items"]
    on_node = {item["check"]: item["level"] for item in items if item["where"] == "node"}
    assert on_node["job"] == on_node["launcher"] == on_node["visibility"] == "ok"
    assert list(lab.root.iterdir()) == []

    path.write_text(yaml.safe_dump(completed | {"python": "/nowhere/python"}))
    done = hpcdet("site", "check", "--job", "--timeout", "240")
    assert done.returncode == 4 and "/nowhere/python" in done.stderr


def test_a_directive_that_the_scheduler_refuses_is_found_by_the_check(lab: Lab) -> None:
    path = lab.folder / "own.yaml"
    own = "extends: generic-slurm\npartitions: {batch: {}, short: {directives: {acount: x}}}\n"
    path.write_text(own)
    done = hpcdet("site", "check", str(path), "-o", "json")
    assert done.returncode == 4, done.stdout
    levels = {item["what"]: item["level"] for item in json.loads(done.stdout)["items"]}
    assert levels["a job in partition batch would be accepted"] == "ok"
    [refused] = [what for what, level in levels.items() if level == "error"]
    assert refused.startswith("a job in partition short is refused") and "acount" in refused
    assert not [job for job in lab.cluster.jobs() if job["JobName"].startswith("lint")]
