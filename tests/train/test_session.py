"""Ranks, signals, agreement, random numbers, time and the journal of one attempt."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Subset

from hpcdet import checkpoint
from hpcdet.data import loader, rng
from hpcdet.data.sample_order import Slice
from hpcdet.errors import ConfigError
from hpcdet.process import deterministic, signals
from hpcdet.process.installed_packages import installed
from hpcdet.process.location import AttemptLocation
from hpcdet.process.ranks import Ranks
from hpcdet.store.config import resolved_config as configs
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.decisions import wakeup
from hpcdet.store.decisions.wakeup import Told
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Control, Trial
from hpcdet.store.fs import journal
from hpcdet.train.attempt import fingerprint
from hpcdet.train.attempt.session import Session
from hpcdet.train.checkpoints.deadline import Deadline
from hpcdet.train.telemetry.tracker import Tracker, plain
from hpcdet.units import Units
from tests import ranks


@pytest.fixture(autouse=True)
def _own_signals() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGUSR2, signal.SIGUSR1, signal.SIGCONT)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    signals.forget()
    for number, handler in before.items():
        signal.signal(number, handler)


SRUN = {"SLURM_STEP_ID": "3", "SLURM_PROCID": "5", "SLURM_NTASKS": "9", "SLURM_LOCALID": "1"}


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, Ranks()),
        (
            {
                "RANK": "3",
                "WORLD_SIZE": "4",
                "LOCAL_RANK": "1",
                "LOCAL_WORLD_SIZE": "2",
                "NODE_RANK": "1",
            },
            Ranks(3, 4, 1, 2, 1),
        ),
        (
            SRUN
            | {
                "SLURM_STEP_NUM_TASKS": "6",
                "SLURM_NODEID": "2",
                "SLURM_STEP_TASKS_PER_NODE": "2(x2),2",
            },
            Ranks(5, 6, 1, 2, 2),
        ),
        # a batch script's own processes are not ranks
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"}, Ranks()),
        (
            {
                "OMPI_COMM_WORLD_RANK": "2",
                "OMPI_COMM_WORLD_SIZE": "4",
                "OMPI_COMM_WORLD_LOCAL_RANK": "0",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
                "OMPI_COMM_WORLD_NODE_RANK": "0",
            },
            Ranks(2, 4, 0, 2, 1),
        ),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, Ranks(1, 2, 1, 2, 0)),
        # srun --mpi=pmi2: Slurm knows the nodes; mpirun of MPICH in a step of Slurm does, too
        (SRUN | {"PMI_RANK": "5", "PMI_SIZE": "6"}, Ranks.from_environment(SRUN)),
        (
            SRUN
            | {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"},
            Ranks(3, 4, 1, 2, 1),
        ),
    ],
)
def test_ranks_come_from_the_launcher(env: dict[str, str], expected: Ranks) -> None:
    assert Ranks.from_environment(env) == expected


def test_an_impossible_rank_is_said() -> None:
    with pytest.raises(ConfigError, match="rank 4 of 4"):
        Ranks.from_environment({"RANK": "4", "WORLD_SIZE": "4"})


def test_notices_are_remembered_and_others_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    signals.install()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert (signals.heard(), signals.heard_at()) == ("", None)
    monkeypatch.setattr(signals, "time", SimpleNamespace(time=iter((5.0, 6.0)).__next__))
    os.kill(os.getpid(), signal.SIGUSR2)
    os.kill(os.getpid(), signal.SIGTERM)
    assert (signals.heard(), signals.heard_at()) == ("SIGUSR2", 5.0)


def test_held_notices_are_heard_by_the_next_program() -> None:
    signals.hold()
    signal.raise_signal(signal.SIGTERM)
    assert signals.heard() == ""
    signals.install()
    assert signals.heard() == "SIGTERM"
    signals.hold()
    signals.forget()
    signals.install()
    assert signals.heard() == "SIGTERM"


HEAP = """
import ctypes, resource, sys
from hpcdet.train.attempt.startup import keep_memory
assert keep_memory() is (sys.argv[1] == "keeps")
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
size, faults = 8 << 20, []
for step in range(4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [libc.malloc(size) for _ in range(8)]
    for block in blocks:
        ctypes.memset(block, 1, size)
    for block in blocks:
        libc.free(block)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(faults[-1])
"""


def test_memory_that_steps_free_is_not_asked_for_page_by_page() -> None:
    def faults(kind: str, **environment: str) -> int:
        argv = [sys.executable, "-c", HEAP, kind]
        done = subprocess.run(
            argv, env=os.environ | environment, capture_output=True, text=True, check=True
        )
        return int(done.stdout)

    pages = (64 << 20) // os.sysconf("SC_PAGE_SIZE")
    assert faults("keeps") < pages / 10
    # what a user has set for the allocator counts
    assert faults("left alone", MALLOC_TRIM_THRESHOLD_="131072") > pages / 2


def test_every_generator_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.Generator()  # stands for an accelerator's

    def draw() -> list[float]:
        return [
            random.random(),
            random.gauss(0, 1),
            float(np.random.standard_normal()),
            float(torch.randn(1)),
            float(own["numpy"].standard_normal()),
            float(torch.rand(1, generator=own["torch"])),
            own["python"].random(),
            float(torch.rand(1, generator=device)),
        ]

    own: dict[str, Any] = {
        "numpy": np.random.default_rng(1),
        "torch": torch.Generator(),
        "python": random.Random(1),
    }
    before = rng.capture_cpu()
    rng.seed_all(3)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", device.get_state)
    monkeypatch.setattr(torch.cuda, "set_rng_state", device.set_state)
    draw()
    state = rng.capture(own)
    first = draw()
    assert draw() != first
    rng.restore(state, own)
    assert draw() == first
    rng.restore_cpu(before)


class Noise:
    """Samples drawn from all three libraries."""

    def __getitem__(self, index: int) -> list[float]:
        return [index, random.random(), float(np.random.rand()), float(torch.rand(1))]


def test_augmentation_depends_on_seed_epoch_and_sample_alone() -> None:
    def slices() -> Iterator[Slice]:
        for epoch in range(2):
            for indices in ([4, 2], [0]):
                yield Slice(epoch, len(indices), np.array(indices), len(indices), False)

    def drawn(*seed: int, workers: int) -> list[Any]:
        made = loader.ShardedLoader(Noise(), slices, seed, num_workers=workers, collate_fn=list)
        return [batch for _, batch in made]

    before = rng.capture_cpu()
    rng.seed_all(1)
    here = drawn(1, workers=0)
    after = (random.random(), float(np.random.rand()), float(torch.rand(1)))
    rng.seed_all(1)
    # drawing samples took nothing from the process's own generators
    assert after == (random.random(), float(np.random.rand()), float(torch.rand(1)))
    assert here == drawn(1, workers=2)
    assert here != drawn(2, workers=0)
    assert here[0] != here[2]
    # a split has a method that fetches batches, and is still drawn sample by sample
    split = Subset(Subset(Noise(), list(range(5))), list(range(5)))  # type: ignore[arg-type, var-annotated]
    made = loader.ShardedLoader(split, slices, (1,), collate_fn=list)
    assert [batch for _, batch in made] == here
    rng.restore_cpu(before)


def test_a_full_disk_does_not_stop_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found: list[int] = []  # what a reader finds who is told of a validation
    path = tmp_path / "journal.jsonl"
    tracker = Tracker(path, lambda: found.append(len(journal.read(path))))
    tracker.record("metrics", step=1)
    with monkeypatch.context() as patch:

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr(os, "write", full)
        tracker.record("metrics", step=2)
        tracker.record("metrics", step=3, group="validation")
    assert not found
    assert capsys.readouterr().err.count("No space left") == 1
    tracker.record("metrics", step=4)
    assert found == [4]
    tracker.close()
    lines = journal.read(tmp_path / "journal.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3, 4]


def test_metrics_that_no_journal_took_are_told_by_who_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal's disk is full, the checkpoints' is not; then all is killed."""
    trial = ranks.experiment(tmp_path / "digits-7f3a", code="")
    root = trial.root.parent.parent
    config = configs.load(root / "experiment.yaml")
    record = Trial.read(trial.record)
    assert record is not None

    def attempt(number: int) -> Session:
        return Session(Ranks(), AttemptLocation.of(root, 1, number), record, config, Deadline(None))

    first, state = attempt(1), {"w": torch.ones(3)}
    first.begin(None, Units())
    place = ExperimentPaths(root)
    with monkeypatch.context() as patch:

        def full(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr(first.tracker._writer, "append", full)
        first.report("training", Units(1), {"loss": 0.5})
        assert first.keeper.save(1, state, None)
        first.report("validation", Units(2), {"loss": float("nan")})
        assert first.keeper.save(2, state, None, wait=False)
        assert first.keeper.drain()
    assert wakeup.told(place) == wakeup.NOTHING, "a turn would find nothing"
    second = attempt(2)
    loaded = second.keeper.restore(second.record)
    assert loaded is not None
    assert loaded.manifest.step == 2
    second.begin(loaded.manifest, Units(2))
    assert wakeup.told(place) == Told(reports={1})
    assert second.keeper.save(3, state, None)
    second.tracker.close()
    rows = [line for line in journal.read(trial.attempt(2).journal) if line["kind"] == "metrics"]
    assert [(row["group"], row["step"], row["metrics"]) for row in rows] == [
        ("training", 1, {"loss": 0.5}),
        ("validation", 2, {"loss": "NaN"}),
    ]
    assert not any("untold" in one.meta for one in checkpoint.committed(trial.checkpoints)[2:])


def test_of_metrics_only_validations_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = ranks.experiment(tmp_path / "digits-7f3a", code="")
    place = AttemptLocation.of(trial.root.parent.parent, 1, 1)
    config = configs.load(tmp_path / "digits-7f3a" / "experiment.yaml")
    record = Trial.read(trial.record)
    assert record is not None
    session = Session(Ranks(), place, record, config, Deadline(None))
    session.begin(None, Units())
    synced: list[int] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(fd), fsync(fd)))
    for step in range(1, 101):
        session.report("training", Units(step), {"loss": 0.5})
        session.coordinator.poll(Units(step))
    assert not synced
    session.report("validation", Units(100), {"validation_loss": 0.5})
    assert len(synced) == 1
    lines = journal.read(place.attempt.journal)
    assert [line["group"] for line in lines[-2:]] == ["training", "validation"]
    session.finish("signal", Units(100))
    assert len(synced) > 1  # its verdict, and the journal before it


def test_a_trial_canceled_at_once_leaves_without_saving_though_told_to_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Left(BaseException):
        pass

    def leave(code: int) -> None:
        raise Left

    trial = ranks.experiment(tmp_path / "digits-7f3a", code="")
    place = AttemptLocation.of(trial.root.parent.parent, 1, 1)
    session = Session(Ranks(), place, Trial(1, {}, 7), Resolved(), Deadline(None))
    session.begin(None, Units())
    session.coordinator.poll(Units(1))
    Control("kill", now=True, term=9).write_once(trial.control(99))
    monkeypatch.setattr(signals, "heard", lambda: "SIGTERM")
    monkeypatch.setattr(os, "_exit", leave)
    with pytest.raises(Left):
        session.coordinator.poll(Units(2))
    assert journal.read(place.attempt.journal)[-1]["kind"] != "notice"


def test_deterministic_sets_the_switches_or_says_who_has_set_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    switches = (
        (torch.backends.cudnn, "deterministic", True),
        (torch.backends.cudnn, "benchmark", False),
        (torch.backends.cudnn, "allow_tf32", False),
        (torch.backends.cuda.matmul, "allow_tf32", False),
    )
    for place, name, wanted in switches:
        monkeypatch.setattr(place, name, not wanted)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")
    with pytest.raises(ConfigError, match="CUBLAS_WORKSPACE_CONFIG=:0:0 lets cuBLAS choose"):
        deterministic.demand()
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    try:
        deterministic.demand()
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    assert os.environ.pop("CUBLAS_WORKSPACE_CONFIG") == ":4096:8"
    os.environ.pop("TORCHINDUCTOR_DETERMINISTIC", None)
    assert [getattr(place, name) for place, name, _ in switches] == [True, False, False, False]


def test_loaded_modules_are_part_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint.take(None, 1, 1, installed(), {})
    monkeypatch.setenv("LOADEDMODULES", "gcc/13:openmpi/5")
    found = fingerprint.differences(before, fingerprint.take(None, 1, 1, installed(), {}))
    assert found == ["modules: - -> gcc/13:openmpi/5"]


def test_metrics_become_json() -> None:
    given = {"a": torch.tensor(1.5), "b": np.float32(2), "c": float("nan"), "d": {"e": [1, True]}}
    assert plain(given) == {"a": 1.5, "b": 2.0, "c": "NaN", "d": {"e": [1, True]}}
    with pytest.raises(TypeError, match="metric f is a set"):
        plain({"f": {1}})


def test_what_code_writes_beside_itself_is_no_other_code(tmp_path: Path) -> None:
    paths = ExperimentPaths(tmp_path)
    (paths.code / "sub").mkdir(parents=True)
    (paths.code / "sub" / "model.py").write_text("a")
    paths.provenance.write_text('{"code": {"sub/model.py": ""}}')

    def code() -> str:
        return fingerprint.take(paths, 1, 1, {}, fingerprint.submitted(paths))["code"]

    submitted = code()
    assert submitted == fingerprint.code_digest(paths.code), "as it was before there were names"
    (paths.code / "data").mkdir()
    (paths.code / "data" / "digits").write_text("fetched")
    assert code() == submitted
    (paths.code / "sub" / "model.py").write_text("b")
    assert code() != submitted
