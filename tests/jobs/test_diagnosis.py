"""``doctor``: what it finds, what each finding means, and what it does not look at."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcdet.cli.setup import doctor
from hpcdet.cli.setup import site as site_verbs
from hpcdet.errors import Unavailable
from hpcdet.jobs.diagnosis import (
    finding,
    machine_checks,
    node_checks,
    rank_steps,
    scheduler_checks,
    storage_checks,
)
from hpcdet.jobs.diagnosis.finding import SiteFinding
from hpcdet.launchers.common import Launch
from hpcdet.schedulers.slurm import slurm_inside
from hpcdet.schedulers.slurm.slurm import SlurmScheduler
from hpcdet.site import Site
from hpcdet.site_files import load_site
from hpcdet.store.fs import files
from tests import TOP, experiments
from tests.commands import Cli
from tests.slurm_runs import Lab, hpcdet
from tests.slurm_sites import write_site

NAMED = {
    *("scheduler", "history", "limits", "launcher", "mpi", "torch", "collectives", "hdf5"),
    *("rename", "creation", "visibility", "quota", "inodes", "purge", "clock", "gpu"),
}
"""What a doctor has a word on, wherever it is."""


def by_check(found: list[SiteFinding]) -> dict[str, SiteFinding]:
    return {one.check: one for one in found}


def test_each_check_has_a_word_a_meaning_and_a_line_that_fits(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = cli("doctor", "--site", "local", "-o", "json").items
    assert {item["check"] for item in items} >= NAMED
    assert all(item["meaning"] for item in items)
    for item in items:
        looked = not item["what"].startswith("not looked at: ")
        assert looked == (item["level"] != "skipped"), item
    skipped = {(item["where"], item["check"]) for item in items if item["level"] == "skipped"}
    assert skipped >= {("node", one) for one in node_checks.CHECKS}
    assert skipped >= {("nodes", one) for one in rank_steps.CHECKS}
    assert skipped >= {("here", one) for one in ("history", "limits", "quota", "purge")}

    monkeypatch.setenv("COLUMNS", "80")
    lines = cli("doctor", "--site", "local").out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "hpcdet doctor --node" in " ".join(" ".join(lines).split())


def test_a_site_is_not_proven_where_its_job_finds_an_error_between_nodes(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a partition takes only jobs of several nodes, the job looks between them."""
    ran = SiteFinding("ok", "a job ran on n1", check="job", where="node")
    unseen = SiteFinding("error", "n1 and n2: no word", "mount it", "visibility", "nodes")
    found = [ran, finding.skipped("mpi", "the job has one node", where="nodes"), unseen]
    monkeypatch.setattr(site_verbs.node_checks, "findings", lambda *_, **__: iter(found))
    said = cli("site", "check", "local", "--job", "-o", "json", code=4)
    assert "n1 and n2: no word" in said.err
    assert [item["where"] for item in said.items if item["where"] != "here"] == ["node", "nodes"]


def test_the_page_of_the_doctor_has_a_row_for_each_check() -> None:
    rows = [
        line.split("|")[1].strip(" `")
        for line in (TOP / "docs" / "reference" / "doctor.md").read_text().splitlines()
        if line.startswith("| `")
    ]
    assert rows == list(finding.MEANINGS)


def test_what_a_user_may_still_write_is_looked_up_or_said_to_be_unknown(tmp_path: Path) -> None:
    quota = ["echo", f"{_device(tmp_path)} 4000000 5000000 6000000 10 5000 6000"]
    values = {"paths": {"scratch": str(tmp_path), "purge_days": 30}, "quota_command": quota}
    site = experiments.local_site(**values)
    found = by_check([*storage_checks.of_user(site, tmp_path / "root")])
    assert found["quota"].level == "warning" and "4990 files" in found["quota"].what
    assert found["purge"].level == "warning" and "30 days" in found["purge"].what
    assert all(one.hint for one in found.values())
    [elsewhere] = [one for one in storage_checks.of_user(site, Path("/")) if one.check == "purge"]
    assert elsewhere.level == "ok"
    mute = experiments.local_site(quota_command=["false"])
    unknown = by_check([*storage_checks.of_user(mute, tmp_path)])
    assert {unknown[one].level for one in ("quota", "purge")} == {"skipped"}


def _device(folder: Path) -> str:
    said = subprocess.run(["df", "--output=source", folder], capture_output=True, text=True)
    return said.stdout.split()[-1]


def test_a_file_system_that_breaks_a_promise_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {one.level for one in storage_checks.findings(tmp_path)} == {"ok"}
    few = os.statvfs_result((4096, 4096, 9, 9, 9, 100, 9, 9, 0, 255))
    with monkeypatch.context() as patched:
        patched.setattr("os.statvfs", lambda path: few)
        found = by_check([*storage_checks.findings(tmp_path)])
        assert found["inodes"].level == found["room"].level == "warning"
        unnamed = os.statvfs_result((4096, 4096, 9, 9, 9, 0, 0, 0, 0, 255))
        patched.setattr("os.statvfs", lambda path: unnamed)
        assert by_check([*storage_checks.findings(tmp_path)])["inodes"].level == "skipped"

    now = time.time
    with monkeypatch.context() as patched:
        patched.setattr("hpcdet.jobs.diagnosis.storage_checks.time.time", lambda: now() - 60)
        clock = by_check([*storage_checks.findings(tmp_path)])["clock"]
    assert clock.level == "warning" and "+60 s" in clock.what

    def overwrite(path: Path, data: bytes) -> bool:
        path.write_bytes(data)
        return True

    monkeypatch.setattr(files, "write_once", overwrite)
    monkeypatch.setattr(files, "replace", lambda path, data: path.touch())
    found = by_check([*storage_checks.findings(tmp_path)])
    assert found["creation"].level == found["rename"].level == "error"
    assert list(tmp_path.iterdir()) == []


def test_hdf5_locks_are_told_and_a_file_system_without_them_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hdf5() -> SiteFinding:
        return machine_checks._hdf5(tmp_path)

    assert hdf5().what.endswith("with locks")
    with monkeypatch.context() as patched:
        patched.setenv("HDF5_USE_FILE_LOCKING", "FALSE")
        assert hdf5().what.endswith("without locks")
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: HDF5 cannot be kept from its locks")
    source, broken = tmp_path / "flock.c", tmp_path / "flock.so"
    source.write_text(
        "#include <errno.h>\nint flock(int f, int o) { errno = ENOLCK; return -1; }\n"
    )
    subprocess.run([compiler, "-shared", "-fPIC", "-o", broken, source], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(broken))
    monkeypatch.setenv("HDF5_USE_FILE_LOCKING", "TRUE")
    found = hdf5()
    assert found.level == "error" and "HDF5_USE_FILE_LOCKING" in found.hint


def test_an_accelerator_that_torch_does_not_see_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidiactl").touch()
    monkeypatch.setattr(machine_checks, "_DEVICES", (str(tmp_path / "nvidiactl"),))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = machine_checks._gpu()
    assert found.level == "warning" and "CUDA_VISIBLE_DEVICES" in found.hint


def test_a_scheduler_is_asked_for_its_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(accounting: bool) -> dict[str, SiteFinding]:
        plain = load_site.load("generic-slurm").plain()
        site = Site.model_validate({**plain, "capabilities": {"accounting": accounting}})
        monkeypatch.setattr(SlurmScheduler, "_config", {"MaxArraySize": "5"})
        return by_check([*scheduler_checks.findings(site)])

    down = look(True)
    assert down["scheduler"].level == "error"  # nothing answers here
    assert {down[one].level for one in ("history", "limits")} == {"skipped"}
    monkeypatch.setattr(SlurmScheduler, "partitions", lambda self: [])
    none = look(False)
    assert none["history"].level == "warning" and none["history"].hint
    assert "5 tasks of an array" in none["limits"].what

    def refuse(*_: object) -> object:
        raise Unavailable("sacct: no connection to slurmdbd")

    monkeypatch.setattr(SlurmScheduler, "usage", refuse)
    assert "slurmdbd" in look(True)["history"].what
    monkeypatch.setattr(SlurmScheduler, "usage", lambda self, jobs: {})
    assert look(True)["history"].level == "ok"


def test_two_ranks_look_at_what_is_between_them(tmp_path: Path) -> None:
    def rank(number: int) -> subprocess.Popen[bytes]:
        own = {"RANK": str(number), "WORLD_SIZE": "2", "LOCAL_RANK": str(number)}
        argv = [sys.executable, "-Pm", "hpcdet.rank_check", str(tmp_path), "auto"]
        return subprocess.Popen(argv, env={**os.environ, **own, "LOCAL_WORLD_SIZE": "2"})

    assert [one.wait(120) for one in [rank(0), rank(1)]] == [0, 0]
    first, second = (rank_steps._left(tmp_path, "auto", number) for number in (0, 1))
    site = load_site.load("generic-slurm")
    found = by_check(
        [
            *rank_steps._of_files(site, first, second, ""),
            rank_steps._of_collectives(first, second, ""),
        ]
    )
    assert found.keys() == {"visibility", "clock", "creation", "rename", "collectives"}
    assert {one.level for one in found.values()} == {"ok"}
    assert len(first["created"]) + len(second["created"]) == 100

    def again(**changes: object) -> dict[str, SiteFinding]:
        said = [*rank_steps._of_files(site, {**first, **changes}, {**second, **changes}, "")]
        return by_check([*said, rank_steps._of_collectives({**first, **changes}, second, "")])

    assert again(visible_s=3.0)["visibility"].level == "warning"
    late = again(visible_s=site.lease_ttl_s)["visibility"]
    assert late.level == "error" and "lease_ttl_s" in late.hint
    assert again(clock_s=-60.0)["clock"].level == "warning"
    assert again(clock_error_s=60.0)["clock"].level == "skipped"
    assert again(created=[1, 2])["creation"].level == "error"
    assert again(torn=1)["rename"].level == again(last=False)["rename"].level == "error"
    assert again(sum=False)["collectives"].level == "error"
    none = by_check([*rank_steps._of_files(site, {}, {}, "srun: no such node")])
    assert none["visibility"].level == "error" and "no such node" in none["visibility"].what
    assert {none[one].level for one in ("clock", "creation", "rename")} == {"skipped"}


def test_a_step_that_hangs_is_ended_in_time_for_the_jobs_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_steps, "_KILL_S", 0.1)
    deaf = ("bash", "-c", "trap '' TERM; while :; do sleep 0.1; done")
    launch = Launch(deaf, dict(os.environ), ({},), by_launcher=True)
    assert rank_steps._run(launch, tmp_path, "auto", 2.0) == "no end in 2 s"


@pytest.mark.parametrize("walltime_s", [site_verbs.JOB_WALLTIME_S, doctor.WALLTIME_S, 36000])
def test_both_steps_end_in_the_time_of_their_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, walltime_s: int
) -> None:
    """That of ``site check`` is short, and has two nodes where a partition takes no job of one."""
    limits: list[float] = []

    def run(launch: Launch, place: Path, backend: str, limit_s: float) -> str:
        limits.append(limit_s)
        return "no end"

    monkeypatch.setattr(rank_steps, "_run", run)
    monkeypatch.setattr(slurm_inside, "ask", lambda *_, **__: "n1\nn2\n")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: True)
    for name, value in {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}.items():
        monkeypatch.setenv(name, value)
    site = load_site.load("generic-slurm")
    assert [*rank_steps.findings(site, None, tmp_path, walltime_s)]
    assert len(limits) == 2 and 0 < sum(limits) <= min(walltime_s / 2, 300)


def test_of_a_log_the_sentence_is_told_that_says_why() -> None:
    said = "[vm:1] OPAL ERROR\n-----\nMPI was not built\nfor it. See more.\nsrun: error: n1: task 0"
    assert rank_steps._reason(said) == "MPI was not built for it"
    said = "srun: x\nTraceback (most recent call last):\n  File\nImportError: no torch\n"
    assert rank_steps._reason(said) == "ImportError: no torch"
    assert rank_steps._reason("srun: error: no task\n") == "srun: error: no task"
    assert rank_steps._reason("") == ""


def test_a_job_says_what_it_is_at(cli: Cli) -> None:
    said = cli("doctor", "--site", "local", "--node").err
    assert "checking a node: job local-" in said and "looking at torch" in said
    done = cli("doctor", "--site", "local", "--node", "-o", "json")
    on_node = {item["check"] for item in done.items if item["where"] == "node"}
    assert on_node >= {"job", *node_checks.CHECKS}
    between = [item for item in done.items if item["where"] == "nodes"]
    assert {item["what"] for item in between} == {"not looked at: the job has one node"}


@pytest.mark.parametrize("stage", ["looking at torch", "looking at creation"])
def test_a_canceled_job_leaves_nothing_behind(tmp_path: Path, stage: str) -> None:
    """Its folder is removed under it, or TERM comes while it tries the file system."""
    root, place = tmp_path / "root", tmp_path / "root" / "place"
    files.make_folder(place)
    (place / "seen").write_text("7")
    (place / "site.yaml").write_bytes(load_site.dump(experiments.local_site()))
    slow = "storage_checks._rename = lambda *_: time.sleep(600)"
    code = f"""\
import sys, time
from hpcdet.jobs.diagnosis import machine_checks, storage_checks
{slow if stage == "looking at creation" else ""}
sys.exit(machine_checks.main(sys.argv[1:]))
"""
    with subprocess.Popen([sys.executable, "-Pc", code, str(place), "7", "60"]) as checks:
        experiments.until(lambda: (place / "stage").exists() and _stage(place) == stage)
        if stage == "looking at creation":
            experiments.until(lambda: list(root.glob(".hpcdet-doctor-*/once")))
            checks.terminate()
        shutil.rmtree(place)
    assert checks.returncode != 0
    assert list(root.iterdir()) == []


def _stage(place: Path) -> str:
    return (place / "stage").read_text()


def test_a_rank_does_not_make_its_folder_again(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    own = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    argv = [sys.executable, "-Pm", "hpcdet.rank_check", str(place), "auto"]
    with subprocess.Popen(argv, env={**os.environ, **own}, stderr=subprocess.DEVNULL) as rank:
        experiments.until(lambda: (place / "between" / "asked-0").exists())
        away = place.rename(tmp_path / "away")
        while away.exists():  # the rank writes into it, until it is gone
            shutil.rmtree(away, ignore_errors=True)
    assert rank.returncode != 0 and not place.exists()


def test_a_home_that_nodes_cannot_write_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where it is mounted read-only: /dev/null is no folder, for root neither."""
    with monkeypatch.context() as there:
        there.setenv("HPCDET_CACHE", str(tmp_path / "there"))
        with machine_checks.leave("abc"):
            [found] = machine_checks.cache("abc")
            assert found.level == "ok" and str(tmp_path / "there") in found.what
            monkeypatch.setenv("HPCDET_CACHE", "/dev/null/cache")
            [found] = machine_checks.cache("abc")
            assert found.level == "warning" and "HPCDET_CACHE" in found.hint
            assert found.what.startswith("/dev/null/cache/polling cannot be written")
            monkeypatch.setenv("HPCDET_CACHE", str(tmp_path / "here"))
            [found] = machine_checks.cache("abc")
            assert found.level == "warning" and "is another folder here" in found.what
    assert not list((tmp_path / "there" / "polling").iterdir())


@pytest.mark.slurm
@pytest.mark.xdist_group("slurm")
def test_a_doctor_looks_at_two_nodes_of_slurm(lab: Lab) -> None:
    site = str(write_site(lab.folder, lab.cluster))
    done = hpcdet("doctor", "--site", site, "--node", "-o", "json", "--timeout", "240")
    assert done.returncode == 0, done.stdout + done.stderr
    items = json.loads(done.stdout)["items"]
    levels = {(item["where"], item["check"]): item["level"] for item in items}
    for check in ("visibility", "clock", "creation", "rename", "collectives"):
        assert levels["nodes", check] == "ok", items
    for check in ("python", "packages", "torch", "gpu", "hdf5", "launcher", "visibility", "cache"):
        assert levels["node", check] == "ok", items
    for check in ("scheduler", "history", "limits"):
        assert levels["here", check] == "ok", items
    # a launcher that starts no MPI is said, and no worse: only one backend needs it
    assert levels["nodes", "mpi"] in ("ok", "warning", "skipped")
    assert list(lab.root.iterdir()) == []
    [job] = [job for job in lab.cluster.jobs() if "hpcdet-errand" in job["JobName"]]
    assert job["NumNodes"] == "2"

    broken = str(write_site(lab.folder, lab.cluster, python="/nowhere/python"))
    done = hpcdet("doctor", "--site", broken, "--node", "--nodes", "1", "-o", "json")
    assert done.returncode == 1
    found = {(one["where"], one["check"]): one for one in json.loads(done.stdout)["items"]}
    assert "/nowhere/python" in found["node", "job"]["hint"]
    assert found["node", "torch"]["level"] == found["nodes", "mpi"]["level"] == "skipped"
    assert list(lab.root.iterdir()) == []


@pytest.mark.slurm
@pytest.mark.xdist_group("slurm")
def test_a_queue_that_does_not_start_the_job_and_ctrl_c_leave_nothing(lab: Lab) -> None:
    site = str(write_site(lab.folder, lab.cluster))
    lab.cluster.check(
        *("sbatch", "--exclusive", "-N4", "-o", "/dev/null", "-D", "/", "--wrap", "sleep 600")
    )
    done = hpcdet("doctor", "--site", site, "--node", "--timeout", "3", "-o", "json")
    assert done.returncode == 1
    [job] = [one for one in json.loads(done.stdout)["items"] if one["check"] == "job"]
    assert "no answer in 3 s: pending" in job["what"] and "canceled" in job["what"]
    assert "--timeout" in job["hint"]
    experiments.until(lambda: not _waiting(lab), lambda: str(lab.cluster.jobs()))

    argv = [sys.executable, "-m", "hpcdet", "doctor", "--site", site, "--node"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        experiments.until(lambda: _waiting(lab), lambda: str(lab.cluster.jobs()))
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=60)
    assert run.returncode == 130 and "checking 2 nodes" in said
    experiments.until(lambda: not _waiting(lab), lambda: str(lab.cluster.jobs()))
    assert list(lab.root.iterdir()) == []


def _waiting(lab: Lab) -> list[str]:
    mine = [job for job in lab.cluster.jobs() if job["JobName"].startswith("hpcdet-errand")]
    return [job["JobId"] for job in mine if job["JobState"] == "PENDING"]
