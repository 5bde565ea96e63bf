"""Submission to the private Slurm: looked at, refused, by hand, interrupted, in chunks."""

from __future__ import annotations

import functools
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpcdet.control import daemon, searcher_job
from hpcdet.control.upkeep import accounting
from hpcdet.read.views import views
from hpcdet.store.cost.charges import Book
from hpcdet.store.decisions import lease
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import End, Intent, Submitted
from tests.cluster.configuration import MEMORY_PER_NODE_MB, NODES, Options
from tests.experiments import config, strike, until, worker_pids
from tests.slurm_runs import Lab, Run, hpcdet, undisturbed
from tests.slurm_sites import write_site

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]


def _write(lab: Lab, **changes: object) -> tuple[str, str, str, str]:
    """Words of a submission: the config of one fake trial, its code and the site."""
    values = {
        "name": "tiny",
        "entrypoint": "model_def:TinyTrial",
        "hyperparameters": {"global_batch_size": 8},
        "searcher": {
            "name": "single",
            "metric": "validation_loss",
            "max_length": {"batches": 100},
        },
        "resources": {"slots_per_trial": 1, "walltime_s": 600},
        **changes,
    }
    path = lab.folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(values))
    site = write_site(lab.folder, lab.cluster, python=lab.fake)
    return str(path), str(lab.model), "--site", str(site)


def _run(lab: Lab, experiment: str) -> Run:
    run = Run(lab.cluster, ExperimentPaths(lab.root / experiment), lab.folder / "no-pace")
    lab.runs.append(run)
    return run


def test_a_dry_run_asks_the_scheduler_and_makes_nothing(lab: Lab) -> None:
    words = _write(lab)
    calls = len(lab.cluster.calls.read_text().splitlines())
    done = hpcdet("submit", *words, "--dry-run")
    assert done.returncode == 0, done.stderr
    for text in ("#SBATCH --array=0-0%1", "sbatch --parsable", "# the scheduler says", "to start"):
        assert text in done.stdout
    assert list(lab.root.iterdir()) == []
    assert lab.cluster.call("squeue", "-h").stdout == ""
    said = lab.cluster.calls.read_text().splitlines()[calls:]
    assert any("sbatch --test-only" in line for line in said)
    words = _write(lab, resources={"walltime_s": 600, "resource_pool": ["short", "batch"]})
    done = hpcdet("submit", *words, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "#SBATCH --partition=short,batch" in done.stdout
    assert "to start" in done.stdout.rpartition("# the scheduler says")[2]


def test_what_can_never_run_is_refused_before_anything_is_made(lab: Lab) -> None:
    words = _write(lab, resources={"slots_per_trial": 1, "resource_pool": "nowhere"})
    done = hpcdet("submit", *words, "--no-test")
    assert done.returncode == 4
    assert "no partition nowhere" in done.stderr
    assert "batch" in done.stderr

    limit = {"slots_per_trial": 1, "resource_pool": "short", "walltime_s": 3600}
    done = hpcdet("submit", *_write(lab, resources=limit), "--no-test")
    assert done.returncode == 4
    assert "over the limit of partition short" in done.stderr

    mute = lab.folder / "mute"
    mute.mkdir()
    for name in ("sinfo", "scontrol"):
        (mute / name).write_text(
            "#!/bin/sh\necho 'Unable to contact slurm controller' >&2\nexit 1\n"
        )
        (mute / name).chmod(0o700)
    done = hpcdet("submit", *_write(lab), "--no-test", PATH=f"{mute}:{os.environ['PATH']}")
    assert done.returncode == 5, done.stderr
    assert list(lab.root.iterdir()) == []


def test_a_prepared_script_is_submitted_by_hand_and_carries_no_token(lab: Lab) -> None:
    """Rule 13: a job gets nothing of the submitting shell that is not on a fixed list."""
    words = _write(lab, worker={"idle_s": 5})
    done = hpcdet("submit", *words, "--prepare", "--no-test", "-o", "id")
    assert done.returncode == 0, done.stderr
    run = _run(lab, done.stdout.strip())
    assert lab.cluster.call("squeue", "-h").stdout == ""
    script = run.paths.script(1)
    environ = {**os.environ, "API_TOKEN": "hush-4711"}
    job = subprocess.run(
        ["sbatch", "--parsable", str(script)], env=environ, capture_output=True, text=True
    )
    assert job.returncode == 0, job.stderr
    spool = [*(lab.cluster.root / "state").rglob("*"), *lab.cluster.root.glob("spool.*/**/*")]
    assert [path for path in spool if _holds(path, b"hush-4711")] == []
    run.wait()
    assert run.reasons() == ["completed"], run.story()
    assert run.digest() == undisturbed(100)
    assert run.task() == f"{job.stdout.strip()}_0"
    names = {(entry["JobName"], entry["Comment"].split(":")[0]) for entry in run.tasks()}
    assert names == {(f"{run.paths.id}-1", "hpcdet")}


def _holds(path: Path, text: bytes) -> bool:
    try:
        return text in path.read_bytes()
    except OSError:
        return False


def test_a_submission_cut_off_before_it_was_noted_is_found_again(lab: Lab) -> None:
    """Row 12: the submitter dies between sbatch and the record; the job is adopted by its tag."""
    folder = lab.folder / "treacherous"
    folder.mkdir()
    sbatch = folder / "sbatch"
    real = lab.cluster.commands / "sbatch"
    sbatch.write_text(f'#!/bin/bash\n{real} --hold "$@"\n[ "$1" = --parsable ] && kill -9 $PPID\n')
    sbatch.chmod(0o700)
    words = _write(lab, worker={"idle_s": 5})
    done = hpcdet("submit", *words, "--no-test", PATH=f"{folder}:{os.environ['PATH']}")
    assert done.returncode == -9
    (made,) = lab.root.iterdir()
    run = _run(lab, made.name)
    assert run.submissions() == []
    run.crank()
    until(lambda: len(run.submissions()) == 1, run.story)
    lab.cluster.check("scontrol", "release", run.submissions()[0])
    run.wait()
    assert len(run.tasks()) == 1
    assert run.reasons() == ["completed"], run.story()


def test_a_queue_holds_what_is_held_and_what_waits_for_another_job(lab: Lab) -> None:
    """Both stand in the script; a job that fails is not waited for until the end of time."""
    gates = [
        lab.cluster.check(
            *("sbatch", "--parsable", "--hold", "-p", "batch", "-o", "/dev/null", "-D", "/"),
            *("--wrap", command),
        ).strip()
        for command in ("true", "false")
    ]
    words = _write(lab, worker={"idle_s": 5})
    runs = []
    for gate in gates:
        done = hpcdet("submit", *words, "--no-test", "-o", "id", "--hold", "--after", gate)
        assert done.returncode == 0, done.stderr
        runs.append(_run(lab, done.stdout.strip()))
    good, bad = runs
    held = {(job["JobState"], job["Reason"]) for run in runs for job in run.tasks()}
    assert held == {("PENDING", "JobHeldUser")}
    done = hpcdet("submit", *words, "--no-test", "-o", "id", "--after", good.paths.id)
    assert done.returncode == 0, done.stderr
    follower = _run(lab, done.stdout.strip())
    assert follower.submissions() == []
    lab.cluster.check("scontrol", "release", *gates)
    for run in runs:
        done = hpcdet("release", run.paths.id)
        assert done.returncode == 0, done.stderr
    good.wait()
    assert good.reasons() == ["completed"], good.story()
    follower.wait()  # submitted by the worker that closed the other one
    assert follower.reasons() == ["completed"], follower.story()
    bad.crank()
    until(lambda: views.status(bad.paths).state == "PAUSED", bad.story)
    assert f"job {gates[1]} did not end well" in views.status(bad.paths).why
    until(lambda: all(job["JobState"] == "CANCELLED" for job in bad.tasks()), bad.story)


def test_a_chain_of_jobs_decides_while_nothing_else_runs(lab: Lab) -> None:
    """All memory is taken but for what the searcher's small jobs need: no worker can decide."""
    taken = lab.cluster.check(
        *("sbatch", "--parsable", "-N", str(len(NODES)), "--ntasks-per-node=1"),
        *(f"--mem={MEMORY_PER_NODE_MB - 1000}", "-o", "/dev/null", "-D", "/"),
        *("--wrap", "sleep 3600"),
    ).strip()
    values = config(20, trials=3, worker={"idle_s": 3}, resources={"memory_per_slot": 2**30})
    site = {"python": lab.fake, "searcher_job": {"walltime_s": 600, "memory_mib": 200}}
    run = lab.submit(values, site=site)
    done = hpcdet("searcher", "run", "--as-job", run.paths.id)
    assert done.returncode == 0, done.stderr
    chain = searcher_job.JobChain.of(run.paths)

    def decides(number: int) -> bool:
        """Job ``number`` holds the lease, and its successor waits for its end."""
        held, live = daemon.status(run.paths), chain.live()
        is_held = held["kind"] == "job" and bool(held["held"])
        return is_held and [(n, runs) for n, (_, runs) in live.items()] == [
            (number, True),
            (number + 1, False),
        ]

    until(lambda: decides(1), run.story)
    fields = {job["JobId"]: job for job in run.jobs()}
    first, second = (chain.live()[number][0] for number in (1, 2))
    assert done.stdout.split()[0] == first
    assert (fields[first]["TimeLimit"], fields[first]["NumCPUs"]) == ("00:10:00", "1")
    assert fields[second]["Dependency"].startswith(f"afterany:{first}")
    # what its user sets reaches the array in the queue, down and up again
    for most in ("1", "2"):
        assert hpcdet("set", run.paths.id, f"max_concurrent={most}").returncode == 0
        until(functools.partial(_is_throttled, run, most), run.story)
    lab.cluster.check("scancel", first)
    until(lambda: decides(2), run.story)
    assert hpcdet("searcher", "stop", run.paths.id).returncode == 0
    until(lambda: not chain.live(), run.story)
    lab.cluster.check("scancel", taken)
    run.wait()
    assert [run.reasons(trial) for trial in (1, 2, 3)] == [["completed"]] * 3, run.story()
    last = lease.last(run.paths)
    assert last is not None and last[0].kind == "worker"


def _is_throttled(run: Run, most: str) -> bool:
    return any(job.get("ArrayTaskThrottle") == most for job in run.tasks())


def test_wide_searches_come_in_chunks_and_wait_for_room(lab: Lab) -> None:
    """Row 11: MaxArraySize=5 and MaxSubmit=4, of which the site file says nothing."""
    booted = lab.cluster.options
    lab.cluster.reconfigure(Options(max_array=5, max_submit=4))
    try:
        site = {"limits": {"max_array": 1001, "max_submit": None}, "python": lab.fake}
        values = config(30, trials=7, worker={"idle_s": 3})
        run = lab.submit(values, pace=0.05, site=site)
        run.crank()
        run.wait()
        assert [run.reasons(trial) for trial in range(1, 8)] == [["completed"]] * 7, run.story()
        numbers = run.paths.submissions()
        intents = [Intent.read(run.paths.intent(number)) for number in numbers]
        outcomes = [Submitted.read(run.paths.submitted(number)) for number in numbers]
        assert all(intent.tasks <= 5 for intent in intents if intent)
        taken = [i.tasks for i, o in zip(intents, outcomes, strict=True) if i and o and o.job]
        assert max(taken) <= 4
        assert [run.digest(trial) for trial in range(1, 8)] == [
            undisturbed(30, n) for n in range(1, 8)
        ]
    finally:
        lab.cluster.clear()
        lab.cluster.reconfigure(booted)


@pytest.mark.parametrize(
    "bound",
    [
        {"limits": {"max_running": 2}},
        {"default_partition": "batch", "partitions": {"batch": {"max_running": 2}}},
    ],
    ids=["of_the_site", "of_the_partition"],
)
def test_experiments_share_the_jobs_that_a_user_may_run(lab: Lab, bound: dict[str, Any]) -> None:
    """The second one has no job and no searcher at first: who gives jobs back wakes it."""
    site = {**bound, "python": lab.fake}
    one: dict[str, Any] = {"resources": {"slots_per_trial": 1, "nodes": 1}, "worker": {"idle_s": 1}}
    first = lab.submit(config(40, trials=3, **one), pace=0.2, site=site)
    until(lambda: len(_running(lab)) == 2, first.story, 120)
    second = lab.submit(config(20, trials=2, **one), pace=0.05, site=site)
    assert not second.submissions()
    most = 0
    while not (first.paths.closed.exists() and second.paths.closed.exists()):
        most = max(most, len(_running(lab)))
        time.sleep(0.3)
    assert most == 2
    for run, trials in ((first, 3), (second, 2)):
        run.wait()
        reasons = [run.reasons(trial) for trial in range(1, trials + 1)]
        assert reasons == [["completed"]] * trials, run.story()


def _running(lab: Lab) -> list[str]:
    """Tasks of workers that run; the small job behind an array is none."""
    said = lab.cluster.check("squeue", "-h", "-t", "R", "-o", "%i %j")
    return [line for line in said.splitlines() if "sentinel" not in line]


def test_a_task_that_comes_back_leaves_its_siblings_alone(lab: Lab) -> None:
    """Row 5: the last task of an array has the array's own id; a requeue of it means it alone.
    Rule 3: the new incarnation closes what the killed one left open."""
    values = config(300, trials=3, data={"every": 10}, worker={"mode": "per_trial"})
    run = lab.submit(values, pace=0.1, site={"python": lab.fake})
    for trial in (1, 2, 3):
        run.until_attempts(1, trial)
    (leader,) = [job for job in run.tasks() if job["JobId"] == job["ArrayJobId"]]
    task = f"{leader['ArrayJobId']}_{leader['ArrayTaskId']}"
    (victim,) = [trial for trial in (1, 2, 3) if run.task(trial) == task]
    pid = run.worker_pid(victim)
    assert pid in worker_pids(run.paths)
    strike([pid])
    run.until_attempts(2, victim)
    run.faster()
    run.wait()
    for trial in (1, 2, 3):
        ends = run.reasons(trial)
        assert ends[-1] == "completed" and len(ends) == 1 + (trial == victim), run.story()
        assert set(ends[:-1]) <= {"lost", "preempted"}, run.story()
        assert run.digest(trial) == undisturbed(300, trial)
    restarts = {job["ArrayTaskId"]: job["Restarts"] for job in run.tasks()}
    assert restarts == {
        index: "1" if index == leader["ArrayTaskId"] else "0" for index in ("0", "1", "2")
    }
    first = run.paths.trial(victim).attempt(1)
    end = End.read(first.end)
    assert end is not None and end.closed_by
    # accounting has each run of each task, and its word replaces what the workers noted
    [job] = run.submissions()

    def charged() -> bool:
        accounting.settle(run.paths)
        return Book(run.paths).read() != [] and 1 in _settled(run.paths)

    until(charged, run.story)
    argv = ("sacct", "-X", "-D", "-n", "-P", "-j", job, "-o", "JobID,ElapsedRaw")
    rows = [line.split("|") for line in lab.cluster.check(*argv).splitlines()]
    charges = Book(run.paths).read()
    assert sorted((one.job, one.slot_s) for one in charges) == sorted(
        (name, float(seconds)) for name, seconds in rows
    )
    assert len(charges) == 4 and all(one.worker for one in charges)
    spent = views.status(run.paths).spent
    assert spent.slot_hours == spent.charged_slot_hours
    assert spent.slot_hours == pytest.approx(sum(one.slot_s for one in charges) / 3600, abs=1e-5)
    assert spent.counted_slot_hours != spent.charged_slot_hours


def _settled(paths: ExperimentPaths) -> set[int]:
    book = Book(paths)
    book.read()
    return book.settled
