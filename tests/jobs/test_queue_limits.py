"""Bounds of a partition in the site file: what is outside is refused before it is queued."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcdet.errors import ConfigError
from hpcdet.jobs.checks import queue_limits, site_checks, site_lint
from hpcdet.jobs.diagnosis import node_checks, scheduler_checks
from hpcdet.schedulers.common.base import PartitionInfo
from hpcdet.schedulers.slurm.slurm import SlurmScheduler
from hpcdet.site import Site
from hpcdet.site.partitions import Launcher
from hpcdet.site_files import load_site as sites
from hpcdet.store.config.placement import Resources
from hpcdet.store.config.resolved_config import Resolved, Worker, resolve
from hpcdet.store.config.sections.searcher_keys import Searcher as SearcherConfig
from tests.commands import Cli

HOUR = 3600
BATCH: dict[str, Any] = {
    "min_nodes": 2,
    "max_nodes": 200,
    "min_walltime_s": "5m",
    "max_walltime_s": "12h",
    "walltime_by_nodes": {183: "6h", 91: "2h"},
}


def site(limits: dict[str, Any] | None = None, **batch: Any) -> Site:
    """The local site with one partition, ``batch``."""
    values = {"default_partition": "batch", "partitions": {"batch": batch}, "limits": limits or {}}
    return Site.model_validate({**sites.load("local").plain(), **values})


def nodes(count: int, **more: Any) -> Resources:
    return Resources(slots_per_trial=count, nodes=count, **more)


@pytest.mark.parametrize(
    ("need", "where", "said"),
    [
        (nodes(1), "resources.nodes", "batch takes jobs of 2 nodes and more"),
        (nodes(201), "resources.nodes", "batch gives a job at most 200"),
        (nodes(2, walltime_s=299), "resources.walltime_s", "at least 5 min"),
        (nodes(91, walltime_s=2 * HOUR + 1), "resources.walltime_s", "for 91 nodes"),
        (nodes(92, walltime_s=6 * HOUR + 1), "resources.walltime_s", "at most 6 h"),
        (nodes(200, walltime_s=12 * HOUR + 1), "resources.walltime_s", "at most"),
        # it may begin with 60 nodes, and is a job of 60 then
        (
            nodes(120, walltime_s=5 * HOUR, min_slots_per_trial=60),
            "resources.walltime_s",
            "for 60 nodes",
        ),
    ],
)
def test_nodes_and_walltime_outside_a_queue_are_refused(
    tmp_path: Path, need: Resources, where: str, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        site_checks.preflight(Resolved(resources=need), site(**BATCH), tmp_path)
    assert caught.value.where == where and said in str(caught.value)
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    "need",
    [
        nodes(2, walltime_s=300),
        nodes(91, walltime_s=2 * HOUR),
        nodes(183, walltime_s=6 * HOUR),
        nodes(184, walltime_s=12 * HOUR),
        nodes(200),
        nodes(120, walltime_s=2 * HOUR, min_slots_per_trial=60),
    ],
)
def test_the_bounds_themselves_are_inside(tmp_path: Path, need: Resources) -> None:
    assert site_checks.preflight(Resolved(resources=need), site(**BATCH), tmp_path) == []


def test_submission_ends_with_4_and_makes_nothing(cli: Cli, tmp_path: Path) -> None:
    cli("init", tmp_path)
    file = tmp_path / "far.yaml"
    file.write_text(
        "extends: local\ndefault_partition: batch\n"
        "partitions: {batch: {walltime_by_nodes: {1: 2h}, max_walltime_s: 6h}}\n"
    )
    asked = ["--site", file, "--no-test", "--set", "resources.walltime_s=3h"]
    said = cli("submit", tmp_path / "random.yaml", *asked, code=4).err
    assert "3 h is over the limit of batch for one node" in said and "at most 2 h" in said
    assert list(cli.root.iterdir()) == []


def test_what_the_site_file_knows_needs_no_scheduler(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither one that does not answer, nor one that is not asked, keeps the refusal back."""
    for name in ("sinfo", "scontrol"):
        (tmp_path / name).write_text("#!/bin/sh\necho 'Unable to contact' >&2; exit 1\n")
        (tmp_path / name).chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    cli("init", tmp_path)
    file = tmp_path / "far.yaml"
    file.write_text("extends: polaris\nscheduler: slurm\n")
    asked = ["submit", tmp_path / "random.yaml", "--site", file, "--no-test"]
    for words in ([], ["-n"], ["-n", "--offline"]):
        said = cli(*asked, *words, "--set", "resources.walltime_s=4h", code=4).err
        assert "4 h is over the limit of prod for 10 nodes" in said and "at most 3 h" in said
    assert "Unable to contact" in cli(*asked, code=5).err


def test_whole_nodes_that_are_half_idle_are_warned_of(tmp_path: Path) -> None:
    whole = site(whole_nodes=True, slots_per_node=8)
    need = Resources(slots_per_trial=4, slots_per_node=4)
    [said] = site_checks.preflight(Resolved(resources=need), whole, tmp_path)
    assert "4 of 8 slots would be idle" in said and "worker.lanes" in said
    two = Resolved(resources=need, worker=Worker(lanes=2), searcher=SearcherConfig(max_trials=4))
    assert site_checks.preflight(two, whole, tmp_path) == []
    [said] = site_checks.preflight(Resolved(), site(whole_nodes=True, cpus_per_node=72), tmp_path)
    assert "71 of 72 cores" in said


def test_jobs_of_more_nodes_than_trials_need_are_warned_of(tmp_path: Path) -> None:
    need, groups = Resources(slots_per_trial=3, nodes=3), Worker(node_groups=4)
    wide = site(min_nodes=10).changed({"launcher": Launcher(kind="mpirun")}, {})
    one = Resolved(resources=need, worker=groups)
    [said] = site_checks.preflight(one, wide, tmp_path)
    assert "takes jobs of 12 nodes and more, of which 9 would be idle" in said
    four = replace(one, searcher=SearcherConfig(max_trials=4))
    assert site_checks.preflight(four, wide, tmp_path) == []


SPOT: dict[str, Any] = {
    "scheduler": "slurm",
    "default_partition": "batch",
    "partitions": {"batch": {}, "spot": {"preemptible": True}},
}
OF_PBS = {**SPOT, "scheduler": "pbs"}


@pytest.mark.parametrize(
    ("values", "config"),
    [
        (SPOT, {"resources": {"resource_pool": "spot"}}),
        (SPOT, {"slurm": {"sbatch_args": ["-p batch,spot"]}}),
        (OF_PBS, {"pbs": {"pbsbatch_args": ["-q spot"]}}),
        (OF_PBS, {"resources": {"resource_pool": "spot"}}),
    ],
)
def test_a_preemptible_partition_is_taken_only_if_the_user_agrees(
    values: dict[str, Any], config: dict[str, Any]
) -> None:
    there = Site.model_validate({**sites.load("local").plain(), **values})
    with pytest.raises(ConfigError) as caught:
        queue_limits.refuse_preemptible(resolve(config), there)
    assert caught.value.exit_code == 4 and caught.value.where == "resources.resource_pool"
    assert "jobs in spot may be ended" in str(caught.value)
    assert "resources: {preemptible: true}, or name another one: batch" in str(caught.value)
    agreed = {**config, "resources": {**config.get("resources", {}), "preemptible": True}}
    assert queue_limits.refuse_preemptible(resolve(agreed), there) == []


def test_a_default_that_is_preemptible_is_refused_and_an_agreement_without_effect_told(
    cli: Cli, tmp_path: Path
) -> None:
    cli("init", tmp_path)
    file = tmp_path / "cloud.yaml"
    file.write_text(
        "extends: local\ndefault_partition: spot\n"
        "partitions: {spot: {preemptible: true}, batch: {}}\n"
    )
    words = [tmp_path / "random.yaml", "--site", file, "--no-test"]
    said = cli("submit", *words, code=4).err
    assert "jobs in spot, the default one, may be ended at any time" in said
    assert "resources: {preemptible: true}" in said and list(cli.root.iterdir()) == []
    asked = ["--set", "resources.preemptible=true"]
    said = cli("submit", *words, *asked, "-n").err
    assert "preemptible" not in said
    said = cli("submit", *words, *asked, "--set", "resources.resource_pool=batch", "-n").err
    assert "resources.preemptible has no effect: batch is none; those are: spot" in said


def several(**parts: dict[str, Any]) -> Site:
    values = {"scheduler": "slurm", "partitions": parts}
    return Site.model_validate({**sites.load("local").plain(), **values})


def test_several_partitions_are_one_option_and_the_widest_decides() -> None:
    there = several(
        short={"max_walltime_s": "2h", "max_nodes": 8, "slots_per_node": 4, "cpus_per_node": 64},
        long={
            "walltime_by_nodes": {2: "12h", 4: "6h"},
            "max_walltime_s": "12h",
            "max_nodes": 4,
            "slots_per_node": 2,
            "whole_nodes": True,
            "chain": False,
        },
    )
    view = there.view("short,long")
    assert view.directives["partition"] == "short,long"
    assert (view.slots_per_node, view.cpus_per_node, view.bounds.max_nodes) == (2, 64, 8)
    assert [view.longest_s(count) for count in (2, 3, 5)] == [12 * HOUR, 6 * HOUR, 12 * HOUR]
    assert view.bounds.whole_nodes and not view.bounds.chain
    fits = Resources(slots_per_trial=6, nodes=6, resource_pool="short,long", walltime_s=2 * HOUR)
    queue_limits.refuse_beyond_all(fits, there)
    # six nodes fit into one of them, and three hours into the other
    with pytest.raises(ConfigError, match="3 h is over the limit of short"):
        queue_limits.refuse_beyond_all(replace(fits, walltime_s=3 * HOUR), there)


def test_a_list_of_the_schedulers_partitions_takes_what_one_of_them_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = sites.load("generic-slurm").plain()
    there = Site.model_validate({**plain, "default_partition": "long,wide"})
    known = [PartitionInfo("long", 24 * HOUR, 4, True), PartitionInfo("wide", HOUR, 100, False)]
    monkeypatch.setattr(SlurmScheduler, "partitions", lambda self: known)

    def refuse(count: int, walltime_s: int) -> list[str]:
        return site_checks.refuse_impossible(
            Resolved(resources=nodes(count, walltime_s=walltime_s)), there
        )

    assert refuse(50, HOUR) == refuse(4, 24 * HOUR) == [], "one of them is up"
    with pytest.raises(ConfigError, match="over the limit of partition long"):
        refuse(2, 25 * HOUR)
    with pytest.raises(ConfigError, match="partition long gives a job at most 4"):
        refuse(50, 2 * HOUR)
    known[0] = PartitionInfo("long", 24 * HOUR, 1, False)
    assert refuse(1, HOUR) == ["partition long, wide is down: jobs wait there until it is up"]
    assert node_checks.nodes_of(there, None) == 2
    monkeypatch.setattr(SlurmScheduler, "_config", {"MaxArraySize": "5"})
    said = {one.what for one in scheduler_checks.findings(there) if one.check == "partition"}
    assert said == {"partition long is down", "partition wide is down"}


def test_partitions_with_different_options_are_not_named_together() -> None:
    there = several(cpu={}, gpu={"directives": {"gres": "gpu:4"}})
    with pytest.raises(ConfigError, match="cpu and gpu have different directives") as caught:
        there.view("cpu,gpu")
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("kind", ["local", "generic-pbs"])
def test_a_scheduler_that_takes_no_lists_is_not_given_one(
    cli: Cli, tmp_path: Path, kind: str
) -> None:
    cli("init", tmp_path)
    file = tmp_path / "own.yaml"
    file.write_text(f"extends: {kind}\npartitions: {{a: {{}}, b: {{}}}}\n")
    words = [tmp_path / "random.yaml", "--site", file, "--no-test"]
    said = cli("submit", *words, "--set", "resources.resource_pool=[a, b]", code=4).err
    assert "a,b names several" in said and "goes to one" in said and "name one: a, b" in said
    assert list(cli.root.iterdir()) == []


def test_a_list_of_partitions_is_what_the_script_names(cli: Cli, tmp_path: Path) -> None:
    cli("init", tmp_path)
    words = [tmp_path / "random.yaml", "--site", "generic-slurm"]
    script = cli("templates", "render", *words, "--set", "resources.resource_pool=[a, b]").out
    assert "#SBATCH --partition=a,b\n" in script
    for wrong in ("[a, 3]", "[]", "['a,b']"):
        said = cli("plan", *words, "--set", f"resources.resource_pool={wrong}", code=4).err
        assert "is no list of names" in said


def test_more_jobs_than_may_run_at_once_are_warned_of(tmp_path: Path) -> None:
    many = Resolved(searcher=SearcherConfig(max_trials=40, max_concurrent_trials=16))
    said = site_checks.preflight(many, site({"max_running": 16}), tmp_path)
    assert said == []
    both = site({"max_running": 12, "max_running_project": 10})
    user, project = site_checks.preflight(many, both, tmp_path)
    assert "16 jobs" in user and "runs 12 of one user" in user
    assert "runs 10 of one project" in project


def test_where_jobs_may_not_follow_each_other_none_is_submitted_from_inside(
    cli: Cli, tmp_path: Path
) -> None:
    cli("init", tmp_path)
    file = tmp_path / "own.yaml"
    file.write_text(
        "extends: generic-slurm\ndefault_partition: debug\n"
        "capabilities: {requeue: user, submit_from_compute: true}\n"
        "partitions: {debug: {chain: false}, day: {}}\n"
    )

    def asked(pool: str) -> tuple[str, str]:
        where = ["--site", file, "--set", f"resources.resource_pool={pool}"]
        words = [tmp_path / "random.yaml", *where]
        [item] = cli("plan", *words, "-o", "json").items
        return item["succession"], cli("templates", "render", *words).out

    way, script = asked("debug")
    assert way == "spares" and "scontrol requeue" not in script
    array = int(re.findall(r"--array=0-(\d+)%2", script)[0])
    assert array > 2  # the spares wait in the queue from the start
    way, script = asked("day")
    assert way == "requeue" and "scontrol requeue" in script


def test_names_that_are_too_long_for_the_scheduler_are_refused(tmp_path: Path) -> None:
    short = site({"name_max": 30})
    assert site_checks.preflight(Resolved(name="digits-cnn1"), short, tmp_path) == []
    with pytest.raises(ConfigError, match="at most 11 characters") as caught:
        site_checks.preflight(Resolved(name="digits-cnn12"), short, tmp_path)
    assert caught.value.where == "name"


def test_small_jobs_are_as_large_and_long_as_their_queue_wants() -> None:
    """The job behind an array, and the searcher's, in a queue for jobs of many nodes."""
    prod = {"min_nodes": 10, "min_walltime_s": "20m", "walltime_by_nodes": {24: "3h"}}
    values = {"default_partition": "prod", "partitions": {"prod": prod}}
    wide = Site.model_validate({**sites.load("generic-slurm").plain(), **values})
    sentinel, searcher = (
        set(re.findall(r"--(nodes|ntasks|time)=(\S+)", site_lint.script_of(wide, job, None)))
        for job in ("sentinel", "searcher")
    )
    assert sentinel == {("nodes", "10"), ("ntasks", "10"), ("time", "0-00:20:00")}
    assert searcher >= {("nodes", "10"), ("time", "0-03:00:00")}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"min_nodes": 4, "max_nodes": 2}, "min_nodes 4 is above max_nodes 2"),
        ({"min_walltime_s": "2h", "max_walltime_s": 60}, "min_walltime_s 7200 is above"),
        ({"walltime_by_nodes": {0: "2h"}}, "greater than or equal to 1"),
        ({"max_walltime_s": "2 weeks"}, "is no time"),
    ],
)
def test_bounds_that_no_job_meets_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        site(**values)
