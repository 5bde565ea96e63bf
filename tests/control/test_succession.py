"""Who goes on after a dead node: chosen in one place by what the site allows, said by `plan`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from hpcdet.jobs.script import succession
from hpcdet.jobs.script.render import render
from hpcdet.site import Site
from hpcdet.site_files import load_site as sites
from hpcdet.store.config.placement import Resources
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Intent
from tests.commands import Cli
from tests.jobs.test_render import bash, directives

CONFIG = """\
name: tiny
entrypoint: model_def:Tiny
searcher: {name: single, metric: loss, max_length: {batches: 10}}
"""


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No site file, cluster or answer of whoever runs the tests."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-config"))
    monkeypatch.setenv("HPCDET_CACHE", str(tmp_path / "no-cache"))
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("git", "bash"):
        (bare / name).symlink_to(shutil.which(name) or f"/usr/bin/{name}")
    monkeypatch.setenv("PATH", str(bare))
    monkeypatch.chdir(tmp_path)


def slurm(**can: Any) -> Site:
    return Site.model_validate({**sites.load("generic-slurm").plain(), "capabilities": can})


@pytest.mark.parametrize(
    ("can", "way", "dependency"),
    [
        ({"requeue": "user"}, "requeue", "bad"),
        ({"requeue": "none"}, "successor", "bad"),
        ({"requeue": "none", "submit_from_compute": False}, "spares", "any"),
        ({"requeue": "user", "submit_from_compute": False}, "spares", "any"),
        (
            {"requeue": "user", "submit_from_compute": False, "login_daemon": "allowed"},
            "daemon",
            "",
        ),
    ],
)
def test_what_a_site_allows_decides(can: dict[str, Any], way: str, dependency: str) -> None:
    site = slurm(**can)
    assert (succession.way(site), succession.after_end(site)) == (way, dependency)
    assert succession.way(sites.load("local")) == "supervisor"


@pytest.mark.parametrize("submits", [True, False])
def test_the_job_behind_an_array_is_small_and_leaves_the_queue_by_itself(submits: bool) -> None:
    intent = Intent(1, "x-1-sentinel", "hpcdet:x:1", tasks=1, throttle=1, term=1, watches="812")
    experiment = Resolved(resources=Resources(slots_per_trial=8, nodes=4, slots_per_node=2))
    site = slurm(requeue="none", submit_from_compute=submits)
    text = render(experiment, site, intent, ExperimentPaths(Path("/scratch/x")), {})
    assert bash(text, "-n").stderr == ""
    said = directives(text)
    assert said["dependency"] == ("afternotok:812" if submits else "afterany:812")
    assert said["kill-on-invalid-dep"] == "yes"
    assert (said["nodes"], said["ntasks"], "array" in said) == ("1", "1", False)
    assert "hpcdet.worker.sentinel" in text and "handover" not in text


def test_plan_says_who_goes_on(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(CONFIG)
    said = cli("plan", tmp_path / "c.yaml", "--site", "generic-slurm")
    assert "a small job behind each array submits new workers" in said.out
    assert "there is no scontrol on PATH: careful values are assumed" in said.err
    [item] = cli("plan", tmp_path / "c.yaml", "--site", "local", "-o", "json").items
    assert item["succession"] == "supervisor"
