"""Verbs of sites, templates, configs and the searcher."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpcdet.control.fleet import running_limits
from hpcdet.control.leader import daemon_registry
from hpcdet.store.folder.layout import ExperimentPaths
from tests.commands import Cli
from tests.experiments import until

# -- sites, templates, configs -----------------------------------------------------------


def test_sites_are_listed_shown_and_detected(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {item["id"] for item in cli("site", "ls", "-o", "json").items}
    assert {"local", "generic-slurm", "generic-pbs"} <= names
    assert yaml.safe_load(cli("site", "show", "local").out)["scheduler"] == "local"
    assert "local.yaml:" in cli("site", "show", "local", "--origin").out
    monkeypatch.setenv("HPCDET_SITE", "local")
    [item] = cli("site", "detect", "-o", "json").items
    assert item["id"] == "local" and "HPCDET_SITE" in item["reason"]
    cli("site", "check", "local")
    assert "known sites" in cli("site", "show", "nowhere", code=4).err


def test_a_copied_template_is_in_force(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "local/worker.sh.j2"
    (tmp_path / "work").mkdir(mode=0o700)
    monkeypatch.chdir(tmp_path / "work")
    cli("init", ".")
    copy = Path(cli("templates", "copy", name, "--site", "local").out.strip())
    copy.write_text(copy.read_text() + "# mine\n")
    rows = cli("templates", "ls", "--site", "local", "-o", "json").items
    assert {row["id"].partition("/")[0] for row in rows} <= {"local", "pbs", "slurm"}
    assert [(r["path"] == str(copy), r["in_force"]) for r in rows if r["id"] == name] == [
        (True, True),
        (False, False),
    ]
    assert "# mine" in cli("templates", "show", name, "--site", "local").out
    assert "# mine" in cli("templates", "render", "random.yaml", "--site", "local").out
    assert "already" in cli("templates", "copy", name, "--site", "local", code=2).err
    assert "there are:" in cli("templates", "show", "no.j2", "--site", "local", code=3).err


def test_configs_are_shown_explained_and_planned(cli: Cli, tmp_path: Path) -> None:
    cli("init", tmp_path)
    config = tmp_path / "random.yaml"
    flags = ["--site", "local", "--set", "searcher.max_trials=8"]
    shown = yaml.safe_load(cli("config", "show", config, *flags).out)
    assert shown["searcher"]["max_trials"] == 8 and shown["max_restarts"] == 5
    origins = {
        item["key"]: item["origin"]
        for item in cli("config", "show", config, *flags, "--origin", "-o", "json").items
    }
    assert origins["searcher.max_trials"] == "--set searcher.max_trials"
    assert origins["name"].endswith("random.yaml:3") and origins["max_restarts"] == "default"
    told = yaml.safe_load(cli("config", "show", config, *flags, "--origin").out)
    assert told["searcher.max_trials"] == 8 and told["data"] == {}, "as it is taken again"
    (tmp_path / "group.yaml").write_text("name: group\nmax_restarts: 2\n")
    flags += ["--template", str(tmp_path / "group.yaml")]
    shown = yaml.safe_load(cli("config", "show", config, *flags).out)
    assert (shown["name"], shown["max_restarts"]) == ("spirals", 2)
    assert "max_trials" in cli("config", "explain", "searcher.max_trials").out
    assert "max_restarts" in cli("config", "explain").out
    assert cli("config", "explain", "searcher.max_trial", code=3).err
    assert json.loads(cli("config", "schema").out)["type"] == "object"
    assert "is valid" in cli("config", "validate", config, "--site", "local").err
    [item] = cli("plan", config, *flags, "-o", "json").items
    assert item["brackets"][0]["trials"] == 8 and item["brackets"][0]["rungs"] == [300]
    said = cli("plan", config, *flags, "--set", "searcher.name=asha").out
    assert "8 trials; to 1 batches: 6, 4: 1, 18: 0, 75: 0, 300: 1" in said


def test_lanes_are_what_fits_into_a_node_and_refused_by_name(cli: Cli, tmp_path: Path) -> None:
    cli("init", tmp_path)
    config, site = tmp_path / "random.yaml", tmp_path / "six.yaml"
    part = "{slots_per_node: 8, cpus_per_node: 6}"
    site.write_text(
        "schema: 1\nname: six\nextends: generic-slurm\ndefault_partition: small\n"
        f"partitions: {{small: {part}}}\ndirectives: {{gres: 'gpu:{{{{ slots_per_node }}}}'}}\n"
    )
    ask = ["--set", "resources={slots_per_trial: 2, memory_per_slot: 1G}"]
    ask += ["--set", "searcher.max_trials=8", "--set", "searcher.max_concurrent_trials=5"]

    def lanes(number: object, *more: str) -> list[str | Path]:
        return [config, "--site", str(site), *ask, "--set", f"worker.lanes={number}", *more]

    [item] = cli("plan", *lanes("auto"), "-o", "json").items
    assert item["workers"] == {"lanes": 3, "nodes": 1, "at_once": 2}
    assert item["concurrent_trials"] == 5
    [item] = cli("plan", *lanes(64), "-o", "json").items
    assert item["workers"] == {"lanes": 5, "nodes": 1, "at_once": 1}, "more are never open"
    script = cli("templates", "render", *lanes("auto")).out
    for option in ("ntasks-per-node=6", "mem=6144M", "array=0-1%2", "gres=gpu:6"):
        assert f"#SBATCH --{option}\n" in script

    for line, said in (
        (lanes(2, "--set", "resources.nodes=2"), "lanes share one node"),
        (lanes(2, "--set", "worker.mode=per_trial"), "no use for several lanes"),
        (lanes("auto", "--set", "resources.resource_pool=other"), "does not say what a node"),
        (lanes(0), "worker.lanes"),
    ):
        assert said in cli("plan", *line, code=4).err


def test_a_partition_for_many_nodes_gets_jobs_of_several_trials(cli: Cli, tmp_path: Path) -> None:
    cli("init", tmp_path)
    config, site = tmp_path / "random.yaml", tmp_path / "wide.yaml"
    site.write_text(
        "schema: 1\nname: wide\nextends: generic-slurm\ndefault_partition: prod\n"
        "partitions: {prod: {min_nodes: 10, slots_per_node: 4, cpus_per_node: 32}, debug: {}}\n"
    )
    ask = ["--set", "resources={slots_per_trial: 12, nodes: 3, slots_per_node: 4}"]
    ask += ["--set", "searcher.max_trials=9", "--set", "searcher.max_concurrent_trials=9"]

    def trials(*more: str) -> list[str | Path]:
        return [config, "--site", str(site), *ask, *more]

    [item] = cli("plan", *trials(), "-o", "json").items
    assert item["workers"] == {"lanes": 4, "nodes": 12, "at_once": 3}
    assert "3 of 4 lanes on 12 nodes each" in cli("plan", *trials()).out
    script = cli("templates", "render", *trials()).out
    for option in ("nodes=12", "ntasks-per-node=4", "array=0-2%3"):
        assert f"#SBATCH --{option}\n" in script
    [item] = cli("plan", *trials("--set", "resources.resource_pool=debug"), "-o", "json").items
    assert item["workers"] == {"lanes": 1, "nodes": 3, "at_once": 9}

    elastic = ("--set", "resources.min_slots_per_trial=4", "--set", "reproducibility.elastic=exact")
    for line, said in (
        (trials("--set", "worker.mode=per_trial"), "prod takes jobs of 10 nodes and more"),
        (trials("--set", "worker={mode: per_trial, node_groups: 2}"), "several groups of nodes"),
        (trials(*elastic), "prod takes jobs of 10 nodes and more"),
        (trials(*elastic, "--set", "worker.node_groups=2"), "groups of nodes have one size"),
        (trials("--set", "worker.node_groups=0"), "worker.node_groups"),
    ):
        assert said in cli("submit", *line, "--dry-run", code=4).err
    site.write_text(site.read_text() + "launcher: {kind: local}\n")
    assert "the launcher local has one" in cli("submit", *trials(), "--dry-run", code=4).err


def test_a_plan_has_no_more_jobs_at_once_than_the_site_runs(cli: Cli, tmp_path: Path) -> None:
    cli("init", tmp_path)
    site = tmp_path / "few.yaml"
    ask = ["--set", "searcher.max_trials=12", "--set", "searcher.max_concurrent_trials=8"]
    line = [tmp_path / "random.yaml", "--site", site, "--trial-time", "1h", *ask, "-o", "json"]

    def planned(limits: str, *more: str) -> tuple[Any, list[str]]:
        site.write_text(f"extends: generic-slurm\nlimits: {limits}\n")
        said = cli("plan", *line, *more)
        [item] = said.items
        waits = [text for text in json.loads(said.out)["warnings"] if "jobs are to run" in text]
        return item, waits

    item, waits = planned("{}")
    assert (item["concurrent_trials"], item["workers"]["at_once"]) == (8, 8) and not waits
    assert item["cost"]["run_s"] == 12 / 8 * 3600
    storage = item["storage"]
    item, [wait] = planned("{max_running: 3}")
    assert (item["concurrent_trials"], item["workers"]["at_once"]) == (3, 3)
    assert item["slots"]["at_once"] == 3 and item["cost"]["run_s"] == 12 / 3 * 3600
    assert "8 jobs are to run at once, and few runs 3 of one user" in wait
    assert item["storage"] == storage, "what there may be at most is not less for it"
    item, waits = planned("{max_running: 3, max_running_project: 2}")
    assert item["workers"]["at_once"] == 2 and len(waits) == 2
    item, [wait] = planned(
        "{}\ndefault_partition: gpu\npartitions: {gpu: {max_running: 2}, cpu: {}}"
    )
    assert item["workers"]["at_once"] == 2 and "few runs 2 of one user in gpu" in wait
    item, waits = planned(
        "{}\npartitions: {gpu: {max_running: 2}, cpu: {}}",
        "--set",
        "resources.resource_pool=[gpu, cpu]",
    )
    assert item["workers"]["at_once"] == 8 and not waits, "the other one has room"
    item, [wait] = planned("{max_submit: 5}")
    assert item["workers"]["at_once"] == 4 and "the small job behind the others" in wait
    item, waits = planned("{max_running: 3}", "--set", "worker.lanes=4")
    assert (item["concurrent_trials"], item["workers"]["at_once"]) == (8, 2) and not waits
    item, waits = planned("{max_running: 3}", "--set", "resources.max_slots=2")
    assert item["workers"]["at_once"] == 2 and not waits


def test_the_worker_verb_is_hidden_and_wired(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[object] = []
    monkeypatch.setattr("hpcdet.worker.main.run", lambda *given: heard.append(given) or 85)
    cli("worker", "EXP", "--submission", "2", "--index", "3", "--digest", "d", code=85)
    assert heard == [("EXP", 2, 3, "d")]
    assert "  worker" not in cli("--help").out


def test_a_submission_without_a_job_says_what_it_waits_for(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = running_limits.Room(0, {}, "limits.max_running: 2 of site here")
    monkeypatch.setattr(running_limits, "room", lambda *_: full)
    cli("init", tmp_path / "work")
    said = cli("submit", tmp_path / "work" / "random.yaml", "--site", "local", "--no-test")
    assert "warning: no job is submitted yet: limits.max_running: 2 of site here" in said.err
    assert "local-" not in said.out


def test_no_searcher_stays_where_the_site_forbids_it(cli: Cli, tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    site.write_text("extends: local\ncapabilities: {login_daemon: forbidden}\n")
    cli("init", tmp_path / "work")
    argv = ["--site", site, "--no-test", "--prepare", "-o", "id"]
    name = cli("submit", tmp_path / "work" / "random.yaml", *argv).out.strip()
    said = cli("searcher", "start", name, code=4).err
    assert "no process may stay on a login node here" in said
    assert f"hpcdet searcher run --once {name}" in said
    assert not cli("searcher", "status", name, "-o", "json").items[0]["held"]


def test_the_searcher_daemon_is_started_and_stopped(cli: Cli, tmp_path: Path) -> None:
    cli("init", tmp_path / "work")
    argv = ["--site", "local", "--no-test", "--prepare", "-o", "id"]
    name = cli("submit", tmp_path / "work" / "random.yaml", *argv).out.strip()
    assert "no searcher runs" in cli("searcher", "stop", name, code=3).err
    there = ExperimentPaths(cli.root / name).daemon("login-2")
    daemon_registry.Daemon(7, 1).write_once(there)
    assert "a searcher may stand by on login-2" in cli("searcher", "stop", name, code=3).err
    assert "stands by: perhaps pid 7 on login-2" in cli("searcher", "status", name).err
    there.unlink()
    pid = int(cli("searcher", "start", name).out)

    def holder() -> dict[str, Any]:
        return cli("searcher", "status", name, "-o", "json").items[0]

    try:
        until(lambda: holder()["held"])
        assert (holder()["kind"], holder()["pid"]) == ("daemon", pid)
        assert "runs already" in cli("searcher", "start", name, code=2).err
        assert "another process decides" in cli("rm", name, "-y", code=2).err
        cli("searcher", "stop", name)
        assert not holder()["held"]
    finally:
        # the module that started it may have reaped it already
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def test_the_searcher_in_the_foreground_frees_the_lease(cli: Cli, tmp_path: Path) -> None:
    cli("init", tmp_path / "work")
    argv = ["--site", "local", "--no-test", "--prepare", "-o", "id"]
    name = cli("submit", tmp_path / "work" / "random.yaml", *argv).out.strip()

    def held_by() -> tuple[str, bool]:
        [item] = cli("searcher", "status", name, "-o", "json").items
        return item["kind"], item["held"]

    process = subprocess.Popen(
        [sys.executable, "-m", "hpcdet", "searcher", "run", name], stdout=subprocess.DEVNULL
    )
    try:
        until(lambda: held_by() == ("daemon", True))
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) == 130
    finally:
        process.kill()
        process.wait()
    assert held_by() == ("daemon", False)


def test_run_as_a_module(cli: Cli) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hpcdet", "--version"], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.startswith("hpcdet, version")
