"""Searches on a Slurm that is set otherwise, or whose nodes are: they end with the same digests.

A worker is killed in each. ``HPCDET_LATE_S=30`` makes the folder of the last test as late as a
network file system may be.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files
from tests import experiments
from tests.cluster.configuration import Options
from tests.dose import LATE_S
from tests.experiments import strike
from tests.slurm_runs import Lab, Run, hpcdet, undisturbed
from tests.slurm_sites import newcomer, write_site

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm-b")]

BATCHES = 300
TRIALS = (1, 2, 3)
SOURCES = Path(__file__).parent.parent / "cluster"


def preloaded(lab: Lab, name: str) -> str:
    """Compile an object that changes what processes see of files or clocks."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: nothing can be preloaded")
    made = lab.folder / f"{name}.so"
    source = SOURCES / f"{name}.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", made, source, "-ldl"], check=True)
    return str(made)


def submit(lab: Lab, site: Path, **environ: str) -> Run:
    """Three trials on two nodes, submitted as a user does who leaves afterwards."""
    pace = lab.folder / "pace"
    experiments.set_pace(pace, 0.1)
    values = experiments.config(
        BATCHES,
        trials=len(TRIALS),
        searcher={"max_concurrent_trials": 2},
        data={"every": 10},
        worker={"idle_s": 5},
        slurm={"sbatch_args": ["--exclusive"]},
        environment={"environment_variables": {"PACE": str(pace)}},
    )
    files.replace(lab.model / "c.yaml", yaml.safe_dump(values).encode())
    words = ("submit", str(lab.model / "c.yaml"), "--site", str(site), "--no-test", "-o", "id")
    made = hpcdet(*words, **environ)
    assert made.returncode == 0, made
    run = Run(lab.cluster, ExperimentPaths(lab.root / made.stdout.strip()), pace)
    lab.runs.append(run)
    return run


def survives(run: Run) -> None:
    """A worker is killed between two checkpoints; the search ends as an undisturbed one."""
    for trial in (1, 2):
        run.until_batches(15, trial)
    assert len({run.claim(trial).nodes[0] for trial in (1, 2)}) == 2, run.story()
    strike([run.worker_pid(1)])
    run.until_attempts(2, 1)
    run.faster()
    run.wait()
    assert [run.digest(trial) for trial in TRIALS] == [undisturbed(BATCHES, n) for n in TRIALS]
    assert {run.reasons(trial)[-1] for trial in TRIALS} == {"completed"}, run.story()
    [first] = run.reasons(1)[:-1]  # a rank may hear of the requeue, and save
    assert first in ("lost", "preempted"), run.story()


def test_jobs_may_not_come_back_and_nothing_is_accounted(lab_b: Lab) -> None:
    """JobRequeue=0, which is asked; the killed worker's place is a new job."""
    lab_b.cluster.reconfigure(Options(accounting=False, requeue=False))
    run = submit(lab_b, newcomer(lab_b, python=lab_b.fake))
    survives(run)
    assert len(run.submissions()) == 2, run.story()
    assert {job["Restarts"] for job in run.tasks()} == {"0"}


def programs(lab: Lab, *without: str) -> Path:
    """A folder of all programs of the cluster but some."""
    bin = lab.folder / "bin"
    bin.mkdir()
    for folder in reversed(lab.cluster.environment()["PATH"].split(":")):
        for program in Path(folder).iterdir() if Path(folder).is_dir() else ():
            if program.name not in without:
                (bin / program.name).unlink(missing_ok=True)
                (bin / program.name).symlink_to(program)
    return bin


def test_nodes_get_no_answers(lab_b: Lab) -> None:
    """Commands that ask would hang there; jobs know it by the site file, and call none."""
    asking = ("squeue", "sacct", "sinfo")
    bin, called = programs(lab_b, *asking), lab_b.folder / "called"
    for name in asking:
        (bin / name).write_text(f'#!/bin/sh\necho "$0 $*" >> {called}\nsleep 600\n')
        (bin / name).chmod(0o700)
    site = write_site(
        lab_b.folder,
        lab_b.cluster,
        python=lab_b.fake,
        env={"PATH": str(bin)},
        capabilities={"query_from_compute": False},
    )
    run = submit(lab_b, site)
    survives(run)
    assert not called.exists(), called.read_text()


def test_nodes_have_no_scontrol(lab_b: Lab) -> None:
    """Neither the end of a job can be asked there, nor its requeue."""
    bin = programs(lab_b, "scontrol")
    assert shutil.which("scontrol", path=str(bin)) is None and shutil.which("sbatch", path=str(bin))
    site = write_site(lab_b.folder, lab_b.cluster, python=lab_b.fake, env={"PATH": str(bin)})
    run = submit(lab_b, site)
    survives(run)
    assert {job["Restarts"] for job in run.tasks()} == {"0"}
    assert _log(run, "scontrol: command not found")


def _log(run: Run, text: str) -> bool:
    logs = [path for n in run.paths.submissions() for path in run.paths.job_log(n).glob("*.log")]
    return any(text in path.read_text() for path in logs)


def test_clocks_of_nodes_are_minutes_apart(lab_b: Lab) -> None:
    skew = "n1=+120 n2=-90 n3=+45 n4=-150"
    own = {"LD_PRELOAD": preloaded(lab_b, "skewed_clock"), "CLOCK_SKEW": skew}
    run = submit(lab_b, write_site(lab_b.folder, lab_b.cluster, python=lab_b.fake, env=own))
    survives(run)


def test_entries_appear_late_on_other_nodes(lab_b: Lab) -> None:
    own = {
        "LD_PRELOAD": preloaded(lab_b, "late_entries"),
        "LATE_ROOT": os.path.realpath(lab_b.root),
        "LATE_S": str(LATE_S),
    }
    changes: dict[str, Any] = {"lease_ttl_s": 4 * LATE_S, "python": lab_b.fake, "env": own}
    run = submit(lab_b, write_site(lab_b.folder, lab_b.cluster, **changes), **own)
    survives(run)
