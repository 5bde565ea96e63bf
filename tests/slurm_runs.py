"""Real experiments on the private Slurm: submitted by the command line, watched through their
files and the scheduler, disturbed from outside."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from hpcdet.store import journal
from hpcdet.store.layout import ExperimentPaths
from hpcdet.store.records import Claim, Closed, End, Submitted, Verdict, WorkerClaim
from tests.cluster import processes
from tests.cluster.slurm import SlurmCluster
from tests.experiments import until
from tests.slurm_sites import write_site

MODEL = '''
"""A tiny net with dropout, batch norm and momentum: everything that a resumed run can get wrong.

$PACE is a file with the seconds that a batch takes, read again at each batch.
"""
import os
import time
from pathlib import Path

import torch

from hpcdet.pytorch import DataLoader, PyTorchTrial


class Noise(torch.utils.data.Dataset):
    def __len__(self):
        return 120

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(index)
        x = torch.randn(8, generator=draw)
        return x, x.square().sum().reshape(1)


class TinyTrial(PyTorchTrial):
    def __init__(self, context):
        self.context = context
        net = torch.nn.Sequential(
            torch.nn.Linear(8, 16),
            torch.nn.BatchNorm1d(16),
            torch.nn.ReLU(),
            torch.nn.Dropout(0.3),
            torch.nn.Linear(16, 1),
        )
        self.model = context.wrap_model(net)
        rate = context.get_hparam("learning_rate")
        optimizer = torch.optim.SGD(self.model.parameters(), lr=rate, momentum=0.9)
        self.optimizer = context.wrap_optimizer(optimizer)
        self.case = context.get_hparams().get("case", "")

    def build_training_data_loader(self):
        return DataLoader(Noise(), batch_size=self.context.get_per_slot_batch_size(), shuffle=True)

    def build_validation_data_loader(self):
        return DataLoader(Noise(), batch_size=self.context.get_per_slot_batch_size())

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
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.model(x), y)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch):
        x, y = batch
        return {"validation_loss": torch.nn.functional.mse_loss(self.model(x), y)}
'''

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
            "cpus_per_slot": 1,
            "memory_per_slot": 2**30,
            "walltime_s": 3600,
        },
        "worker": {"min_segment_s": 5, "idle_s": 20},
    }
    for key, value in changes.items():
        known = base.get(key)
        base[key] = {**known, **value} if isinstance(known, dict) and value is not None else value
    return base


@dataclass
class Run:
    """One experiment on the private Slurm.

    Attributes:
        env: environment of the commands that a user gives.
        pace: file with the seconds that one batch takes.
    """

    cluster: SlurmCluster
    paths: ExperimentPaths
    env: Mapping[str, str]
    pace: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def cli(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Give an ``hpcdet`` command as a user would."""
        return hpcdet(self.env, *words)

    def faster(self, seconds: float = 0.0) -> None:
        """Change the pace of all ranks."""
        self.pace.write_text(str(seconds))

    def wait(self, state: str = "COMPLETED", timeout: float = 300) -> None:
        """Wait until the experiment is over, in that state."""
        until(lambda: self.paths.closed.exists(), self.story, timeout)
        closed = Closed.read(self.paths.closed)
        assert closed is not None and closed.state == state, self.story()

    def crank(self) -> None:
        """Be the waiting user whose command turns the crank, in the background."""
        argv = [sys.executable, "-m", "hpcdet", "searcher", "run", self.paths.id]
        self.started.append(
            subprocess.Popen(
                argv,
                env=dict(self.env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )

    def batches(self, trial: int = 1) -> int:
        """Batches trained by the newest attempt of a trial, counted from the trial's start."""
        attempts = self.paths.trial(trial).attempts()
        if not attempts:
            return 0
        lines = journal.read(attempts[-1].journal)
        steps = [
            line["step"]
            for line in lines
            if line["kind"] == "metrics" and line["group"] == "training"
        ]
        return max(steps, default=0)

    def until_batches(self, number: int, trial: int = 1) -> None:
        until(lambda: self.batches(trial) >= number, self.story, 240)

    def until_attempts(self, number: int, trial: int = 1) -> None:
        """Wait for the first batch of an attempt."""

        def trains() -> bool:
            attempts = self.paths.trial(trial).attempts()
            return len(attempts) >= number and self.batches(trial) > 0

        until(trains, self.story, 240)

    def reasons(self, trial: int = 1) -> list[str]:
        """Why each attempt of a trial ended; "" for one that is open."""
        attempts = self.paths.trial(trial).attempts()
        ends = [End.read(attempt.end) for attempt in attempts]
        return [end.reason if end else "" for end in ends]

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

    def ranks(self, trial: int = 1) -> list[int]:
        """Process ids of the ranks of a trial, anywhere."""
        newest = self.paths.trial(trial).attempts()[-1].number
        return self._matching("hpcdet.attempt", str(self.paths.root), str(trial), str(newest))

    def daemons(self) -> list[int]:
        """Process ids of searchers of this experiment."""
        return self._matching("searcher", self.paths.id)

    def _matching(self, *words: str) -> list[int]:
        found = []
        for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
                argv = line.split("\0")
                python = Path(argv[0]).name.startswith("python")
                if python and all(any(w in a for a in argv) for w in words):
                    found.append(pid)
        return sorted(found)

    def digest(self, trial: int = 1) -> str:
        """Content digest of the final state of a trial."""
        verdict = Verdict.read(self.paths.trial(trial).attempts()[-1].verdict)
        assert verdict is not None and verdict.verdict == "done", self.story()
        assert verdict.digest, self.story()
        return verdict.digest

    def jobs(self) -> list[dict[str, str]]:
        """Fields of ``scontrol show job`` of every task of this experiment, ended ones too."""
        return [job for job in self.cluster.jobs() if job["JobName"].startswith(self.paths.id)]

    def submissions(self) -> list[str]:
        """The scheduler's ids of all submissions."""
        numbers = self.paths.submissions()
        records = [Submitted.read(self.paths.submitted(number)) for number in numbers]
        return [record.job for record in records if record is not None and record.job]

    def story(self) -> str:
        """Everything there is to say about a failure."""
        parts = [self.cluster.call("squeue", "-a", "-r").stdout]
        keys = ("JobId", "ArrayTaskId", "JobState", "Reason", "Restarts", "ExitCode", "NodeList")
        for job in self.jobs():
            parts.append(" ".join(f"{key}={job.get(key, '')}" for key in keys))
        patterns = (
            *("jobs/*.logs/*", "decisions/*", "workers/*/journal.jsonl", "workers/*/end.json"),
            *("trials/*/control/*", "trials/*/attempts/*/*.json*", "trials/*/attempts/*/logs/*"),
            *("closed.json", "searcher.log"),
        )
        for pattern in patterns:
            for path in sorted(self.paths.root.glob(pattern)):
                if path.is_file():
                    parts.append(f"--- {path.relative_to(self.paths.root)}")
                    parts.append(processes.tail(path, 25))
        return "\n".join(parts)

    def end(self) -> None:
        """End what this run started outside the scheduler."""
        for process in self.started:
            process.kill()
            process.wait()
        for pid in self.daemons():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def hpcdet(env: Mapping[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """Run an ``hpcdet`` command."""
    return subprocess.run(
        [sys.executable, "-m", "hpcdet", *words],
        env=dict(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )


class Lab:
    """A folder in which one test makes its experiments on one cluster."""

    def __init__(self, cluster: SlurmCluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.runs: list[Run] = []
        (folder / "experiments").mkdir(mode=0o700, exist_ok=True)
        (folder / "model").mkdir(mode=0o755, exist_ok=True)
        (folder / "model" / "model_def.py").write_text(MODEL)

    def environment(self, **more: str) -> dict[str, str]:
        """What the shell of a user has who works on this cluster."""
        kept = {k: v for k, v in os.environ.items() if k in ("HOME", "LANG", "TMPDIR", "USER")}
        return {
            **kept,
            **self.cluster.environment(),
            "HPCDET_ROOT": str(self.folder / "experiments"),
            "HPCDET_CACHE": str(self.folder / "cache"),
            "XDG_RUNTIME_DIR": str(self.folder / "runtime"),
            **more,
        }

    def site(self, **changes: Any) -> Path:
        return write_site(self.folder, self.cluster, **changes)

    def write(self, **changes: Any) -> Path:
        """Write a config; returns its path."""
        pace = self.folder / f"pace-{len(list(self.folder.glob('config-*')))}"
        pace.write_text("0")
        given = config(**changes)
        environment = given.setdefault("environment", {})
        environment["environment_variables"] = {
            "PACE": str(pace),
            **environment.get("environment_variables", {}),
        }
        path = self.folder / f"config-{pace.name[5:]}.yaml"
        path.write_text(yaml.safe_dump(given, sort_keys=False))
        return path

    def submit(
        self,
        *flags: str,
        pace: float = 0.0,
        site: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        **changes: Any,
    ) -> Run:
        """Submit an experiment by ``hpcdet submit``.

        Args:
            pace: seconds that a batch takes at first.
            site: what differs in the site file.
        """
        path = self.write(**changes)
        given = yaml.safe_load(path.read_text())
        pace_file = Path(given["environment"]["environment_variables"]["PACE"])
        pace_file.write_text(str(pace))
        env = env or self.environment()
        words = ["submit", str(path), str(self.folder / "model"), "--site"]
        words += [str(self.site(**(site or {}))), "--no-test", "-o", "id", *flags]
        done = hpcdet(env, *words)
        assert done.returncode == 0, done.stdout + done.stderr
        paths = ExperimentPaths(self.folder / "experiments" / done.stdout.strip())
        run = Run(self.cluster, paths, env, pace_file)
        self.runs.append(run)
        return run

    def end(self) -> None:
        for run in self.runs:
            run.end()


def dice(name: str) -> random.Random:
    """Random numbers of a test; the seed is printed, and $HPCDET_CHAOS_SEED sets it."""
    seed = int(os.environ.get("HPCDET_CHAOS_SEED") or random.SystemRandom().randrange(10**6))
    print(f"seed of {name}: {seed}")
    return random.Random(f"{name} {seed}")


@contextlib.contextmanager
def urgent(cluster: SlurmCluster, nodes: list[str]) -> Iterator[None]:
    """A job of the urgent partition that takes whole nodes, as long as the context lasts."""
    job = cluster.check(
        *("sbatch", "--parsable", "-p", "urgent", "--exclusive", "-o", "/dev/null", "-D", "/"),
        *("-w", ",".join(nodes), "-N", str(len(nodes)), "--wrap", "sleep 3600"),
    ).strip()
    try:
        yield
    finally:
        cluster.call("scancel", job)
