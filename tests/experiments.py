"""Small real experiments for tests: model code, submission, waiting, and the story of a failure."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcdet.control.turn import controller
from hpcdet.jobs.create import begin_from, create
from hpcdet.policy import governed_metrics
from hpcdet.policy.compiled import PolicyText
from hpcdet.read.experiment import series
from hpcdet.schedulers.common import processes
from hpcdet.schedulers.local.local_state import JobFolder, JobRecord, ProcessRecord, TaskRecord
from hpcdet.site import Site
from hpcdet.site_files.load_site import load
from hpcdet.store.config.resolved_config import resolve
from hpcdet.store.decisions import chain
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Closed, End, Verdict
from hpcdet.store.fs import journal, packed
from hpcdet.store.trials.standing import standing

PATIENCE_S = 180

TINY = '''
"""A tiny network with everything that a resumed run can get wrong: dropout, batch norm,
momentum, augmentation, a short last batch."""
import os
import time
from pathlib import Path

import torch

from hpcdet.pytorch import DataLoader, LRScheduler, PyTorchTrial


class Noise(torch.utils.data.Dataset):
    def __len__(self):
        return 120

    def __getitem__(self, index):
        x = torch.randn(8, generator=torch.Generator().manual_seed(index))
        return x + 0.1 * torch.randn(8), x.square().sum().reshape(1)


def network():
    return torch.nn.Sequential(
        torch.nn.Linear(8, 16),
        torch.nn.BatchNorm1d(16),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.3),
        torch.nn.Linear(16, 1),
    )


class Tiny(PyTorchTrial):
    """Without its optimizer, and with nothing that goes wrong."""

    loaders = 0

    def __init__(self, context):
        self.context = context
        self.net = context.wrap_model(network())

    def build_training_data_loader(self):
        size = self.context.get_per_slot_batch_size()
        return DataLoader(Noise(), batch_size=size, shuffle=True, num_workers=self.loaders)

    def build_validation_data_loader(self):
        return DataLoader(Noise(), batch_size=40)

    def train_batch(self, batch, epoch_idx, batch_idx):
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.net(x), y)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch, batch_idx):
        x, y = batch
        return {"validation_loss": torch.nn.functional.mse_loss(self.net(x), y)}
'''
"""What the models here, of the campaigns and of those on the private Slurm have in common."""

MODEL = (
    TINY
    + """

PACE_S, CRASH_AT, CRASH_ATTEMPTS, LOADERS = OPTIONS


class Model(Tiny):
    loaders = LOADERS

    def __init__(self, context):
        super().__init__(context)
        rate = 0.001 + 0.01 * context.get_hparam("x")
        self.optimizer = context.wrap_optimizer(
            torch.optim.SGD(self.net.parameters(), lr=rate, momentum=0.9)
        )
        schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 20, 0.9)
        context.wrap_lr_scheduler(schedule, LRScheduler.StepMode.STEP_EVERY_BATCH)

    def train_batch(self, batch, epoch_idx, batch_idx):
        time.sleep(PACE_S)
        if int(os.environ.get("HPCDET_ATTEMPT", 1)) <= CRASH_ATTEMPTS and batch_idx >= CRASH_AT:
            raise RuntimeError(f"crash at batch {batch_idx}")
        return super().train_batch(batch, epoch_idx, batch_idx)
"""
)

FAKE_RANK = Path(__file__).with_name("fake_rank.py")


def until(
    condition: Callable[[], object],
    story: Callable[[], str] = lambda: "",
    timeout: float = PATIENCE_S,
    every: float = 0.05,
) -> None:
    """Wait for a condition; fail with the story if it does not come."""
    limit = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < limit, f"waited {timeout} s in vain\n{story()}"
        time.sleep(every)


# -- making one ----------------------------------------------------------------------------


def write_model(
    folder: Path,
    *,
    pace_s: float = 0.0,
    crash_at: int = 1 << 30,
    crash_attempts: int = 1,
    loaders: int = 0,
) -> Path:
    """Write ``model_def.py`` with a small real ``Model``, deterministic on a CPU.

    Args:
        pace_s: seconds that each batch takes on top.
        crash_at: batch at which the first ``crash_attempts`` attempts raise.
        loaders: worker processes of the training loader.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    options = repr((pace_s, crash_at, crash_attempts, loaders))
    (folder / "model_def.py").write_text(MODEL.replace("OPTIONS", options))
    return folder


@dataclass(frozen=True)
class Plain:
    """A config that needs no checking: what is left out has its default."""

    values: Mapping[str, Any]
    secrets: Mapping[str, Any]
    policy: PolicyText | None = None
    images: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    sources: Sequence[str] = ()

    def resolved(self) -> dict[str, Any]:
        return dict(self.values)


def config(batches: int = 100, trials: int = 1, ranks: int = 1, **changes: Any) -> dict[str, Any]:
    """A resolved config; ``changes`` are merged one level deep."""
    values: dict[str, Any] = {
        "name": "test",
        "entrypoint": "model_def:Model",
        "hyperparameters": {
            "x": {"type": "double", "minval": 0.0, "maxval": 1.0},
            "global_batch_size": 32,
        },
        "searcher": {
            "name": "random" if trials > 1 else "single",
            "metric": "validation_loss",
            "max_length": {"batches": batches},
            "max_trials": trials,
            "max_concurrent_trials": trials,
        },
        "reproducibility": {"experiment_seed": 7},
        "resources": {"slots_per_trial": ranks, "slots_per_node": ranks},
        "worker": {"min_segment_s": 0.5, "idle_s": 60},
        "checkpoint_every_s": 1,
    }
    for key, value in changes.items():
        known = values.get(key)
        values[key] = {**known, **value} if isinstance(known, dict) else value
    return values


def local_site(**changes: Any) -> Site:
    """The shipped site ``local``, hurried; ``changes`` are merged one level deep."""
    plain = load("local").plain()
    hurried = {
        "limits": {"poll_min_s": 0.2, "kill_wait_s": 5, "signal_lead_s": 2},
        "lease_ttl_s": 5,
        "slots": 8,
        "config": {},
    }
    for key, value in [*hurried.items(), *changes.items()]:
        known = plain.get(key)
        merged = isinstance(known, dict) and isinstance(value, dict) and value
        plain[key] = {**known, **value} if merged else value  # type: ignore[dict-item]
    return Site.model_validate(plain)


def fake_python(folder: Path) -> str:
    """An interpreter that runs ``fake_rank.py`` where a rank is asked for: fast, and no torch."""
    path = folder / "fake-python"
    path.write_text(
        "#!/bin/bash\n"
        'if [ "$2" = hpcdet.attempt ]; then\n'
        '    export HPCDET_EXPERIMENT="$3" HPCDET_TRIAL="$4" HPCDET_ATTEMPT="$5"\n'
        '    export RANK="${RANK:-$SLURM_PROCID}" WORLD_SIZE="${WORLD_SIZE:-$SLURM_NTASKS}"\n'
        f'    exec {sys.executable} {FAKE_RANK} hpcdet attempt "$3"\n'
        "fi\n"
        '[ "$2" = hpcdet.nursery ] && exit 1\n'
        f'exec {sys.executable} "$@"\n'
    )
    path.chmod(0o700)
    return str(path)


def submit(
    values: Mapping[str, Any],
    root: Path,
    site: Site,
    model: Path | None = None,
    policy: PolicyText | None = None,
) -> ExperimentPaths:
    """Make an experiment and turn the crank once, as ``hpcdet submit`` does."""
    if model is None:
        model = root.parent / "empty-model"
        model.mkdir(exist_ok=True, mode=0o700)
    if policy is not None:
        gates = governed_metrics.constraints(policy.compiled)
        values = {**values, "searcher": {**values["searcher"], "constraints": gates}}
    begin = begin_from.look(resolve(values), root)
    paths = create.create(Plain(values, {}, policy), site, model, root, begin=begin)
    turn(paths)
    return paths


def turn(paths: ExperimentPaths) -> controller.Turn:
    """One turn of the crank by this process."""
    holder = controller.Holder.open(paths, "submit")
    try:
        return controller.advance(paths, holder)
    finally:
        holder.close()


def set_pace(path: Path, seconds: float) -> None:
    """Write the file that ``$PACE`` names for ranks: seconds a batch, read again at each."""
    draft = path.with_name(f"{path.name}.draft")
    draft.write_text(str(seconds))
    draft.rename(path)  # nobody sees half of it


# -- watching one --------------------------------------------------------------------------


def closed(paths: ExperimentPaths) -> Closed | None:
    return Closed.read(paths.closed)


def run_to_end(paths: ExperimentPaths, timeout: float = PATIENCE_S) -> Closed:
    """Wait until the experiment is over, and its jobs with it."""
    until(lambda: closed(paths), lambda: story(paths), timeout)
    end = closed(paths)
    assert end is not None
    return end


def crank_to_end(paths: ExperimentPaths, timeout: float = PATIENCE_S) -> Closed:
    """The same, for an experiment of which nothing may be left alive: this process turns."""
    holder = controller.Holder.open(paths, "wait")
    try:
        until(
            lambda: controller.advance(paths, holder).closed,
            lambda: story(paths),
            timeout,
            every=0.3,
        )
    finally:
        holder.close()
    return run_to_end(paths)


def ends(paths: ExperimentPaths, trial: int) -> list[str]:
    """Why each attempt of a trial ended, in their order; "" for one that runs."""
    found = [End.read(attempt.end) for attempt in paths.trial(trial).attempts()]
    return [end.reason if end else "" for end in found]


def final_digest(paths: ExperimentPaths, trial: int) -> str:
    """Digest of the training state with which a trial was completed."""
    last = paths.trial(trial).attempts()[-1]
    verdict = Verdict.read(last.verdict)
    assert verdict is not None and verdict.cause == "completed", story(paths)
    return verdict.digest


class BitsDiffer(AssertionError):
    """A trial ended in another state than it should: never to be tried again until it passes."""


def same_bits(found: object, wanted: object, story: str = "") -> None:
    """Fail for good unless two states are the same."""
    if found != wanted:
        raise BitsDiffer(f"{found} is not {wanted}\n{story}")


def progress(paths: ExperimentPaths, trial: int = 1) -> int:
    """Batches of a trial that its checkpoints vouch for."""
    return standing(paths.trial(trial)).batches


def told(paths: ExperimentPaths) -> set[int]:
    """Trials of which the searcher has heard a report."""
    events = (line["event"] for line in chain.read(paths) if line["kind"] == "event")
    return {event["trial"] for event in events if event["kind"] == "report"}


# -- its processes -------------------------------------------------------------------------


def processes_of(paths: ExperimentPaths, module: str) -> list[int]:
    """Processes on this machine that run a module of hpcdet for this experiment."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            argv = (entry / "cmdline").read_bytes().split(b"\0")
            started = processes.started(int(entry.name)) is not None
            if started and module.encode() in argv and str(paths.root).encode() in argv:
                found.append(int(entry.name))
    return found


def parent(pid: int) -> int:
    """The process that started another; 0 if it is gone."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def rank_pids(paths: ExperimentPaths) -> list[int]:
    """Processes of ranks, real or fake."""
    return [*processes_of(paths, "hpcdet.attempt"), *processes_of(paths, "attempt")]


def worker_pids(paths: ExperimentPaths) -> list[int]:
    return processes_of(paths, "hpcdet.worker")


def daemon_pids(paths: ExperimentPaths) -> list[int]:
    return processes_of(paths, "hpcdet.control.daemon")


def supervisor_pids(state: Path) -> list[int]:
    """The processes of the local backend that run jobs."""
    jobs = [JobFolder(root) for root in (state / "jobs").glob("*")]
    records = [ProcessRecord.read(job.supervisor) for job in jobs if job.supervised()]
    return [record.pid for record in records if record is not None]


def strike(pids: list[int], number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to processes that may be gone already; those that it kills are gone then."""
    begun = {pid: start for pid in pids if (start := processes.started(pid)) is not None}
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    if number == signal.SIGKILL:  # a process may live for some ms after that
        until(lambda: not any(processes.alive(*each) for each in begun.items()), every=0.005)


def damage(paths: ExperimentPaths, how: str, draw: random.Random, trial: int = 1) -> str:
    """Flip bits in the newest checkpoint of a trial, or cut off its end; its ranks are dead.

    Nothing is done unless a sound one is there before it: then nobody could go on.

    Returns:
        Path of the file that was harmed, or "".
    """
    from hpcdet import checkpoint
    from hpcdet.errors import IntegrityError

    def sound(folder: Path) -> bool:
        with contextlib.suppress(IntegrityError, OSError):
            return bool(checkpoint.verify(folder))
        return False

    place = paths.trial(trial).checkpoints
    *older, newest = [None, *(place / one.name for one in checkpoint.committed(place))]
    if newest is None or not any(one is not None and sound(one) for one in older):
        return ""
    with contextlib.suppress(OSError):  # the next attempt may have set it aside already
        path = draw.choice(sorted(newest.iterdir()))
        data = bytearray(path.read_bytes())
        if how == "truncation":
            os.truncate(path, draw.randrange(len(data)))
        else:
            with path.open("r+b") as file:  # in place, as a failing disk does it
                for _ in range(draw.choice([1, 100])):
                    offset = draw.randrange(len(data))
                    file.seek(offset)
                    file.write(bytes([data[offset] ^ 1 << draw.randrange(8)]))
        return str(path)
    return ""


def metric_rows(paths: ExperimentPaths, trial: int = 1) -> list[tuple[str, int, str, str]]:
    """Group, step, name and value of each row that ``hpcdet metrics`` shows of a trial."""
    rows = series.metrics(paths, trial=trial)
    return sorted((row["group"], row["step"], row["name"], repr(row["value"])) for row in rows)


@contextlib.contextmanager
def local_jobs(state: Path) -> Iterator[Path]:
    """A state folder for the local backend; everything that ran in it is killed at the end."""
    before = os.environ.get("HPCDET_LOCAL_STATE")
    os.environ["HPCDET_LOCAL_STATE"] = str(state)
    try:
        yield state
    finally:
        end_local_jobs(state)
        os.environ.pop("HPCDET_LOCAL_STATE")
        if before is not None:
            os.environ["HPCDET_LOCAL_STATE"] = before


def end_local_jobs(state: Path) -> None:
    """Kill every supervisor and every task of a local backend's state folder."""
    known: set[Path] = set()
    # a worker may submit another job until it is dead: look again until nothing is new
    while jobs := [root for root in (state / "jobs").glob("*") if root not in known]:
        known.update(jobs)
        for root in jobs:
            _end_local_job(JobFolder(root))


def _end_local_job(job: JobFolder) -> None:
    supervisor = ProcessRecord.read(job.supervisor)
    if supervisor is not None:
        while processes.alive(supervisor.pid, supervisor.start):
            strike([supervisor.pid])
    record = JobRecord.read(job.record)
    for index in range(record.tasks if record else 0):
        task = TaskRecord.read(job.task(index))
        if task is not None and task.pid and processes.session_alive(task.pid, task.start):
            processes.kill_session(task.pid)


# -- its story -----------------------------------------------------------------------------


def story(paths: ExperimentPaths) -> str:
    """All journals, records and logs as text: what a failed test prints."""
    parts = []
    packed_away = {
        trial.root / unit / name
        for trial in paths.trials()
        for archive in packed.archives(trial.root)
        for unit, entries in archive.folders.items()
        for name in entries
    }
    for path in sorted({*paths.root.rglob("*"), *packed_away}):
        where = path.relative_to(paths.root)
        if where.parts[0] in ("code", "provenance.json") or "checkpoints" in where.parts:
            continue
        if path.suffix == ".jsonl":
            lines = [json.dumps(line) for line in journal.read(path)]
            parts.append("\n".join([f"--- {where}", *lines[:20], *lines[20:][-20:]]))
        elif path.suffix in (".log", ".json"):
            with contextlib.suppress(FileNotFoundError):  # the experiment may be alive
                text = packed.read_bytes(path).decode(errors="replace")
                parts.append(f"--- {where}\n{text[-3000:]}" if text else "")
    return "\n".join(parts)
