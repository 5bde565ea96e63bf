"""``site init``: what a draft says of a survey, and that it is a site whatever the survey is."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdet.jobs.site_draft import draft
from hpcdet.schedulers.common.survey import ClusterSurvey, QueueSurvey
from hpcdet.schedulers.slurm import cluster_survey
from hpcdet.site import Site
from hpcdet.site_files import load_site
from tests.commands import Cli

PARTITIONS = """\
PartitionName=batch Default=YES MaxNodes=UNLIMITED MaxTime=UNLIMITED MinNodes=0 Nodes=n[1-4] \
PriorityTier=1 OverSubscribe=NO PreemptMode=REQUEUE State=UP
PartitionName=gpu Default=NO MaxNodes=8 MaxTime=2-00:00:00 MinNodes=2 Nodes=g[1-4] \
PriorityTier=1 OverSubscribe=EXCLUSIVE PreemptMode=REQUEUE State=UP
PartitionName=gang Default=NO MaxNodes=8 MaxTime=30:00 MinNodes=0 Nodes=g1 \
PriorityTier=1 OverSubscribe=FORCE:2 PreemptMode=GANG,SUSPEND State=UP
PartitionName=urgent Default=NO MaxNodes=8 MaxTime=1:00:00 MinNodes=0 Nodes=n[3-4] \
PriorityTier=10 OverSubscribe=NO PreemptMode=OFF State=UP
"""
SHAPES = """\
batch|2|8|8000|(null)
batch|2|16|64000|(null)
gpu|3|72|500000|gpu:a100:4(S:0-1)
gpu|1|72|250000|gpu:a100:4(S:0-1)
gang|1|72|500000|gpu:a100:2,gpu:h100:2
urgent|2|16|64000|gpu:1
"""


def load(folder: Path, text: str, name: str = "delta") -> Site:
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return load_site.load(str(path))


def survey(preempts: str = "preempt/partition_prio") -> ClusterSurvey:
    rows = cluster_survey.partitions(PARTITIONS)
    queues = cluster_survey.queues(rows, cluster_survey.shapes(SHAPES), preempts)
    rule = {"scontrol": "ClusterName", "match": "^delta$"}
    return ClusterSurvey(
        *("delta", "Slurm 22.05.8", "generic-slurm", rule, queues, ("grp-1", "0123")),
        max_running=12,
    )


def test_what_the_cluster_says_is_in_the_draft(tmp_path: Path) -> None:
    text = draft("delta", "delta.yaml", survey(), "2026-11-24", {"PSCRATCH": "/s"})
    site = load(tmp_path, text)
    assert site.default_partition == "batch" and site.directives == {"account": "grp-1"}
    assert site.limits.max_running == 12 and site.paths.scratch == "$PSCRATCH"
    batch, gpu, gang = (site.view(name) for name in ("batch", "gpu", "gang"))
    assert (batch.cpus_per_node, batch.slots_per_node, batch.max_walltime_s) == (8, None, None)
    assert (gpu.slots_per_node, gpu.bounds.min_nodes, gpu.bounds.max_nodes) == (4, 2, 8)
    assert gpu.max_walltime_s == 172800 and gpu.bounds.whole_nodes
    assert gpu.directives["gpus-per-node"] == "{{ slots_per_node }}"
    assert gang.slots_per_node == 4 and "it suspends jobs" in text.partition("  gang:")[2]
    assert "4 nodes, 72 cores, 250000 MiB, 4 a100 accelerators" in text
    asked = text.partition("  batch:")[2].partition("  gpu:")[0]
    assert "# preemptible: true" in asked and text.count("# preemptible: true") == 1
    assert "# preemptible" not in draft("delta", "-", survey("preempt/none"), "2026-11-24", {})


def test_limits_that_nobody_tells_are_asked_for(tmp_path: Path) -> None:
    text = draft("delta", "-", dataclasses.replace(survey(), max_running=None), "2026-11-24", {})
    assert "\n  max_running: null           # ? jobs of a user" in text
    assert load(tmp_path, text).limits.max_running is None
    assert "max_running: null" not in draft("delta", "-", survey(), "2026-11-24", {})


WORDS = st.text(st.characters(codec="utf-8", categories=("L", "M", "N", "P", "S", "Z")), min_size=1)
COUNTS = st.none() | st.integers(1, 10**9)
QUEUES = st.builds(
    QueueSurvey,
    name=WORDS.filter(str.strip),
    default=st.booleans(),
    nodes=st.integers(0, 10**6),
    min_nodes=st.just(1),
    max_nodes=COUNTS,
    max_walltime_s=COUNTS,
    whole_nodes=st.booleans(),
    preemptible=st.booleans(),
    suspends=st.booleans(),
    cpus_per_node=COUNTS,
    memory_mib=COUNTS,
    slots_per_node=st.integers(0, 64),
    accelerator=st.just("") | WORDS,
    directives=st.dictionaries(WORDS, WORDS, max_size=2),
)


@settings(max_examples=40, deadline=None)
@given(
    queues=st.lists(QUEUES, max_size=4, unique_by=lambda queue: queue.name),
    accounts=st.lists(WORDS, max_size=3),
    rule=st.fixed_dictionaries({"scontrol": WORDS, "match": WORDS}),
)
def test_every_draft_is_a_site(
    tmp_path_factory: pytest.TempPathFactory,
    queues: list[QueueSurvey],
    accounts: list[str],
    rule: dict[str, str],
) -> None:
    """Names of partitions and accounts may be any words: ``on``, ``1e3``, ``{``, ``#``, quotes."""
    found = ClusterSurvey("delta", "x", "generic-slurm", rule, tuple(queues), tuple(accounts))
    site = load(tmp_path_factory.mktemp("draft"), draft("delta", "-", found, "2026-11-24", {}))
    assert list(site.partitions) == [queue.name for queue in queues]
    assert site.directives == ({"account": accounts[0]} if accounts else {})
    assert site.detect[0].of_cluster == ("scontrol", rule["scontrol"])


def test_a_machine_without_a_scheduler_is_a_site_of_its_own(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.defpath)
    monkeypatch.setenv("HPCDET_SITE", "local")
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.yaml"
    assert cli("site", "init", "mine", "--out", path).out == f"{path}\n"
    site = load_site.load(str(path))
    assert (site.scheduler, site.extends, site.launcher.kind) == ("local", "local", "local")
    assert "already" in cli("site", "init", "mine", "--out", path, code=2).err
    assert "no name of a site" in cli("site", "init", "a/b", code=2).err


def test_a_controller_that_does_not_answer_gives_no_draft(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bin = tmp_path / "bin"
    bin.mkdir()
    for command in ("scontrol", "sbatch"):
        (bin / command).write_text("#!/bin/sh\necho 'Unable to contact controller' >&2; exit 1\n")
        (bin / command).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin}:{os.defpath}")
    monkeypatch.setenv("HPCDET_SITE", "generic-slurm")
    path = tmp_path / "mine.yaml"
    assert "Unable to contact" in cli("site", "init", "--out", path, code=5).err
    assert not path.exists()
