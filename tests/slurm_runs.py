"""Real experiments on the private Slurm: submitted by the command line, watched through their
files and the scheduler, disturbed from outside."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hpcdet.control import daemon
from hpcdet.site import Site
from hpcdet.site_files.load_site import load
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Claim, Closed, End, Submitted, WorkerClaim
from hpcdet.store.fs import journal
from tests import experiments
from tests.cluster.slurm import SlurmCluster
from tests.experiments import until
from tests.slurm_sites import write_site

MODEL = (
    experiments.TINY
    + """

class TinyTrial(Tiny):
    # $PACE is a file with the seconds that a batch takes, read again at each batch
    def __init__(self, context):
        super().__init__(context)
        rate = context.get_hparam("learning_rate")
        optimizer = torch.optim.SGD(self.net.parameters(), lr=rate, momentum=0.9)
        self.optimizer = context.wrap_optimizer(optimizer)
        self.case = context.get_hparams().get("case", "")

    def train_batch(self, batch, epoch_idx, batch_idx):
        time.sleep(float(Path(os.environ["PACE"]).read_text()))
        if self.case == "always" and batch_idx == 12:
            raise RuntimeError("this trial always fails")
        if self.case == "once" and batch_idx == 12:
            try:
                os.close(os.open(os.environ["PACE"] + ".crashed", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                raise RuntimeError("this trial fails once")
        return super().train_batch(batch, epoch_idx, batch_idx)
"""
)

BATCHES = 40


def config(**changes: Any) -> dict[str, Any]:
    """A config of one trial on 2 nodes with one rank each; mappings are merged one level deep."""
    base: dict[str, Any] = {
        "name": "tiny",
        "entrypoint": "model_def:TinyTrial",
        "hyperparameters": {"global_batch_size": 8, "learning_rate": 0.01},
        "searcher": {
            "name": "single",
            "metric": "validation_loss",
            "max_length": {"batches": BATCHES},
        },
        "reproducibility": {"experiment_seed": 7},
        "min_validation_period": {"batches": 10},
        "min_checkpoint_period": {"batches": 5},
        "scheduling_unit": 1,
        "max_restarts": 2,
        "resources": {
            "slots_per_trial": 2,
            "nodes": 2,
            "slots_per_node": 1,
            "cpus_per_slot": 1,
            "memory_per_slot": 2**30,
            "walltime_s": 3600,
        },
        "worker": {"min_segment_s": 5, "idle_s": 20},
    }
    for key, value in changes.items():
        known = base.get(key)
        base[key] = {**known, **value} if isinstance(known, dict) else value
    return base


@dataclass
class Run:
    """One experiment on the private Slurm.

    Attributes:
        pace: file with the seconds that one batch takes.
        started: processes that this run started outside the scheduler.
    """

    cluster: SlurmCluster
    paths: ExperimentPaths
    pace: Path
    started: list[int] = field(default_factory=list)

    def faster(self, seconds: float = 0.0) -> None:
        """Change the pace of all ranks."""
        experiments.set_pace(self.pace, seconds)

    def wait(self, state: str = "COMPLETED", timeout: float = 300) -> None:
        """Wait until the experiment is over, in that state."""
        until(lambda: self.paths.closed.exists(), self.story, timeout)
        closed = Closed.read(self.paths.closed)
        assert closed is not None and closed.state == state, self.story()

    def crank(self) -> int:
        """Start a searcher, as a user would who comes back; returns its process id."""
        self.started.append(daemon.start(self.paths))
        return self.started[-1]

    def batches(self, trial: int = 1) -> int:
        """Batches trained by the newest attempt of a trial, counted from the trial's start."""
        attempts = self.paths.trial(trial).attempts()
        lines = journal.read(attempts[-1].journal) if attempts else []
        return max((line["step"] for line in lines if "step" in line), default=0)

    def until_batches(self, number: int, trial: int = 1) -> None:
        until(lambda: self.batches(trial) >= number, self.story, 240)

    def until_attempts(self, number: int, trial: int = 1) -> None:
        """Wait for the first batch of an attempt."""

        def trains() -> bool:
            attempts = self.paths.trial(trial).attempts()
            lines = journal.read(attempts[-1].journal) if len(attempts) >= number else []
            return any(line["kind"] == "first_step" for line in lines)

        until(trains, self.story, 240)

    def until_training(self, trial: int = 1) -> None:
        """Wait until the newest attempt is past its first batch and runs, or all is over."""

        def trains() -> bool:
            attempts = self.paths.trial(trial).attempts()
            lines = journal.read(attempts[-1].journal) if attempts else []
            runs = any(line["kind"] == "first_step" for line in lines)
            return (runs and not self.reasons(trial)[-1]) or self.paths.closed.exists()

        until(trains, self.story, 240)

    def reasons(self, trial: int = 1) -> list[str]:
        """Why each attempt of a trial ended; "" for one that is open."""
        attempts = self.paths.trial(trial).attempts()
        ends = [End.read(attempt.end) for attempt in attempts]
        return [end.reason if end else "" for end in ends]

    def notes(self, kind: str) -> list[dict[str, Any]]:
        """The notes of a kind of all workers."""
        journals = self.paths.root.glob("workers/*/journal.jsonl")
        return [line for file in journals for line in journal.read(file) if line["kind"] == kind]

    def until_ended(self, number: int, trial: int = 1) -> None:
        """Wait until so many attempts of a trial have ended."""
        until(lambda: len([r for r in self.reasons(trial) if r]) >= number, self.story, 240)

    def claim(self, trial: int = 1) -> Claim:
        """Who runs the newest attempt of a trial."""
        found = Claim.read(self.paths.trial(trial).attempts()[-1].claim)
        assert found is not None
        return found

    def task(self, trial: int = 1) -> str:
        """The array task ``A_T`` of the newest attempt of a trial."""
        return self.claim(trial).job

    def worker_pid(self, trial: int = 1) -> int:
        """The process of the worker that runs the newest attempt of a trial."""
        folder = self.paths.root / "workers" / self.claim(trial).worker
        claim = WorkerClaim.read(folder / "claim.json")
        assert claim is not None
        return claim.pid

    def digest(self, trial: int = 1) -> str:
        """Content digest of the final state of a trial."""
        digest = experiments.final_digest(self.paths, trial)
        assert digest, self.story()
        return digest

    def jobs(self) -> list[dict[str, str]]:
        """Fields of ``scontrol show job`` of every task of this experiment, ended ones too."""
        return [job for job in self.cluster.jobs() if job["JobName"].startswith(self.paths.id)]

    def tasks(self) -> list[dict[str, str]]:
        """Those of workers: without the small job behind each array."""
        return [job for job in self.jobs() if not job["JobName"].endswith("-sentinel")]

    def submissions(self) -> list[str]:
        """The scheduler's ids of all submissions."""
        numbers = self.paths.submissions()
        records = [Submitted.read(self.paths.submitted(number)) for number in numbers]
        return [record.job for record in records if record is not None and record.job]

    def story(self) -> str:
        """Everything there is to say about a failure."""
        keys = ("JobId", "ArrayTaskId", "JobState", "Reason", "Restarts", "ExitCode", "NodeList")
        jobs = [" ".join(f"{key}={job.get(key, '')}" for key in keys) for job in self.jobs()]
        return "\n".join([*jobs, experiments.story(self.paths)])

    def end(self) -> None:
        """End what this run started outside the scheduler."""
        experiments.strike(experiments.processes_of(self.paths, "hpcdet.control.daemon"))
        for pid in self.started:
            with contextlib.suppress(ChildProcessError):  # subprocess may have been first
                os.waitpid(pid, 0)


def hpcdet(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run an ``hpcdet`` command."""
    return subprocess.run(
        [sys.executable, "-m", "hpcdet", *words],
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )


class Lab:
    """A folder in which one test makes its experiments on one cluster.

    Args:
        environ: set for this process: what a user of this cluster has in his shell.
    """

    def __init__(self, cluster: SlurmCluster, folder: Path, environ: pytest.MonkeyPatch) -> None:
        self.cluster = cluster
        self.folder = folder
        self.root = folder / "experiments"
        self.runs: list[Run] = []
        self._numbers = itertools.count()
        self.root.mkdir(mode=0o700)
        self.model = folder / "model"
        self.model.mkdir(mode=0o700)
        (self.model / "model_def.py").write_text(MODEL)
        self.fake = experiments.fake_python(folder)
        settings = {
            **cluster.environment(),
            "HPCDET_ROOT": str(self.root),
            "HPCDET_CACHE": str(folder / "cache"),
        }
        for name, value in settings.items():
            environ.setenv(name, value)

    def site(self, **changes: Any) -> Site:
        """The resolved site of the cluster; mappings are merged one level deep."""
        return load(str(write_site(self.folder, self.cluster, **changes)))

    def submit(
        self,
        values: Mapping[str, Any] | None = None,
        *,
        pace: float = 0.0,
        site: Mapping[str, Any] | None = None,
    ) -> Run:
        """Make an experiment and turn the crank once, as ``hpcdet submit`` does.

        Args:
            values: the resolved config; default: that of ``config()``.
            pace: seconds that a batch takes at first.
            site: what differs in the site file.
        """
        file = self.folder / f"pace-{next(self._numbers)}"  # of its own, from any thread
        experiments.set_pace(file, pace)
        given = dict(values or config())
        given["environment"] = {"environment_variables": {"PACE": str(file)}}
        made = experiments.submit(given, self.root, self.site(**(site or {})), self.model)
        run = Run(self.cluster, made, file)
        self.runs.append(run)
        return run

    def submit_fakes(self, values: Mapping[str, Any], **site: Any) -> Run:
        """The same with ranks that train nothing: see ``tests/fake_rank.py``."""
        return self.submit(values, site={"python": self.fake, **site})

    def end(self) -> None:
        for run in self.runs:
            run.end()


def undisturbed(batches: int, trial: int = 1) -> str:
    """The state in which a fake trial ends that nobody disturbs."""
    state = str(trial)
    for step in range(1, batches + 1):
        state = hashlib.sha256(f"{state} {step}".encode()).hexdigest()
    return state


@contextlib.contextmanager
def urgent(cluster: SlurmCluster, nodes: list[str]) -> Iterator[str]:
    """The id of a job of the urgent partition that takes whole nodes while the context lasts."""
    job = cluster.check(
        *("sbatch", "--parsable", "-p", "urgent", "--exclusive", "-o", "/dev/null", "-D", "/"),
        *("-w", ",".join(nodes), "-N", str(len(nodes)), "--wrap", "sleep 3600"),
    ).strip()
    try:
        yield job
    finally:
        cluster.call("scancel", job)
