"""What a site file leaves open is asked of the cluster, once a day, and never on a node."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hpcdet.schedulers.calls import cluster_facts
from hpcdet.schedulers.slurm import slurm_facts
from hpcdet.site import Site
from hpcdet.site_files import load_site
from hpcdet.site_files.load_site import from_resolved, load
from hpcdet.store.fs import files
from tests.commands import Cli
from tests.slurm_runs import Lab, hpcdet
from tests.slurm_sites import newcomer

CONFIG = """\
Configuration data as of 2026-11-22T18:28:15
AccountingStorageType   = accounting_storage/slurmdbd
ClusterName             = delta
JobRequeue              = 1
KillWait                = 45 sec
MaxArraySize            = 501
SLURM_VERSION           = 22.05.8
"""
PARTITIONS = """\
PartitionName=batch AllowGroups=ALL AllocNodes=ALL Default=YES QoS=N/A
PartitionName=gpu AllowGroups=ALL AllocNodes=login[1-2] Default=NO QoS=N/A
"""
ASSOCIATIONS = "mine||40\nmine|gpu|4\nother||7\n"


class Cluster:
    """A ``scontrol`` and a ``sacctmgr`` first on PATH; ``calls`` are those made of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir()
        for command in ("scontrol", "sacctmgr"):
            (folder / command).write_text(
                "#!/bin/bash\n"
                f'echo "{command} $*" >>{folder}/calls\n'
                f"if [ -e {folder}/away ]; then\n"
                "    echo 'Unable to contact slurm controller' >&2; exit 1\nfi\n"
                f'case "{command} $*" in\n'
                f"*config) cat {folder}/config ;;\n"
                f"*partition) cat {folder}/partitions ;;\n"
                f"*assoc*) cat {folder}/associations ;;\nesac\n"
            )
            (folder / command).chmod(0o755)
        self.say()

    def say(self, config: str = CONFIG, associations: str = ASSOCIATIONS) -> None:
        (self.folder / "config").write_text(config)
        (self.folder / "partitions").write_text(PARTITIONS)
        (self.folder / "associations").write_text(associations)

    @property
    def calls(self) -> list[str]:
        calls = self.folder / "calls"
        return calls.read_text().splitlines() if calls.exists() else []


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster(tmp_path / "cluster")
    monkeypatch.setenv("PATH", f"{made.folder}:{os.environ['PATH']}")
    monkeypatch.setenv("HPCDET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return made


def resolved(pool: str | None = None, **values: object) -> Site:
    """The shipped site as the cluster completes it; ``values`` are said by a file of one's own."""
    path = Path("own.yaml")
    files.replace(path, json.dumps({"extends": "generic-slurm", **values}).encode())
    site, assumed = slurm_facts.resolved(load(str(path)), pool)
    assert not assumed and not site.open
    return site


def test_what_the_shipped_file_leaves_open_the_cluster_answers(cluster: Cluster) -> None:
    site = resolved()
    can, limits = site.capabilities, site.limits
    assert (can.requeue, can.accounting, can.submit_from_compute) == ("user", True, True)
    assert (limits.max_array, limits.max_submit, limits.kill_wait_s) == (501, 40, 45)
    said = {key: origin.partition(": ") for key, origin in site.origins.items()}
    assert said["capabilities.requeue"][0].startswith("asked on 20")
    assert said["capabilities.requeue"][2] == "JobRequeue=1"
    # what nodes read has every answer in it
    again = load_site.dump(site)
    Path("site.yaml").touch(mode=0o600)
    files.replace(Path("site.yaml"), again)
    assert from_resolved(Path("site.yaml")).plain() == site.plain()


def test_operators_and_partitions_that_want_less(cluster: Cluster) -> None:
    cluster.say(CONFIG.replace("JobRequeue              = 1", "JobRequeue              = 0"))
    site = resolved("gpu", directives={"account": "other"})
    assert site.capabilities.requeue == "none"
    assert not site.capabilities.submit_from_compute
    assert site.limits.max_submit == 7
    assert site.origins["capabilities.submit_from_compute"].endswith(
        "AllocNodes=login[1-2] of partition gpu"
    )
    assert resolved("batch").capabilities.submit_from_compute
    assert resolved(directives={"account": "nobody's"}).limits.max_submit is None


def test_what_a_site_file_says_wins(cluster: Cluster) -> None:
    said = {"requeue": "none", "accounting": False, "submit_from_compute": False}
    limits = {"max_array": 900, "max_submit": 3, "kill_wait_s": 5}
    site = resolved(capabilities=said, limits=limits)
    assert site.capabilities.model_dump().items() >= said.items()
    assert site.limits.model_dump().items() >= limits.items()
    assert site.origins["capabilities.requeue"].startswith(str(Path("own.yaml").absolute()))
    assert cluster.calls == []


def test_the_cluster_is_asked_once_a_day(cluster: Cluster, cli: Cli, tmp_path: Path) -> None:
    resolved()
    first = len(cluster.calls)
    cluster.say(CONFIG.replace("45 sec", "46 sec"))
    assert resolved().limits.kill_wait_s == 45
    assert len(cluster.calls) == first == 3
    cli("site", "detect", "--profile", "generic-slurm")
    assert resolved().limits.kill_wait_s == 46
    [kept] = (tmp_path / "cache" / "polling").glob("facts-*.json")
    old = json.loads(kept.read_text())
    cluster.say()
    kept.write_text(json.dumps({**old, "at": old["at"] - cluster_facts.GOOD_FOR_S}))
    assert resolved().limits.kill_wait_s == 45
    # an answer of yesterday is better than none
    kept.write_text(json.dumps({**old, "at": old["at"] - cluster_facts.GOOD_FOR_S}))
    (cluster.folder / "away").touch()
    assert resolved().limits.kill_wait_s == 46
    # who asks anew hears that it is that answer
    said = cli("site", "detect", "--profile", "generic-slurm").err
    assert "did not answer (scontrol show config: Unable to contact" in said
    day = datetime.fromtimestamp(old["at"] - cluster_facts.GOOD_FOR_S, UTC).date()
    assert f"what it said on {day} stands" in said
    kept.unlink()
    kept.symlink_to(kept)
    assert "did not answer" in slurm_facts.resolved(load("generic-slurm"))[1]
    kept.unlink()
    kept.write_text(json.dumps({**old, "at": "yesterday"}))
    assert "did not answer" in slurm_facts.resolved(load("generic-slurm"))[1]
    kept.write_text("{")
    site, assumed = slurm_facts.resolved(load("generic-slurm"))
    assert "did not answer (scontrol show config: Unable to contact" in assumed
    assert (site.capabilities.requeue, site.limits.max_array) == ("none", 1001)
    assert site.origins["limits.max_array"].startswith("assumed: the cluster did not answer")


def test_offline_nobody_is_asked_and_that_is_said(cluster: Cluster, cli: Cli) -> None:
    shown = cli("site", "show", "generic-slurm", "--origin", "--offline")
    assert cluster.calls == []
    assert "capabilities.requeue: none    # assumed: it was not asked" in shown.out
    assert "careful values are assumed for capabilities.accounting" in shown.err
    shown = cli("site", "show", "generic-slurm", "--origin")
    assert "capabilities.requeue: user    # asked on 20" in shown.out
    assert "assumed" not in shown.out + shown.err


@pytest.mark.slurm
@pytest.mark.xdist_group("slurm")
def test_a_real_cluster_answers(lab: Lab) -> None:
    site, assumed = slurm_facts.resolved(load(str(newcomer(lab))))
    options = lab.cluster.options
    assert not assumed
    assert (site.capabilities.requeue, site.capabilities.accounting) == ("user", True)
    assert site.capabilities.submit_from_compute
    assert (site.limits.max_array, site.limits.kill_wait_s) == (1001, options.kill_wait_s)
    assert site.limits.max_submit is None
    assert len(site.open) == 0
    shown = hpcdet("site", "show", str(newcomer(lab)), "--origin")
    assert "limits.kill_wait_s: 6    # asked on" in shown.stdout, shown
