"""Trials whose ranks are forked, under a worker: the same bits and reasons as of cold ones."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcdet.schedulers.common import processes
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import journal
from tests import experiments as x

BATCHES, TRIALS, RANKS = 40, 2, 2


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return x.write_model(tmp_path / "model", pace_s=0.05)


@pytest.fixture(autouse=True)
def jobs(tmp_path: Path) -> Iterator[None]:
    with x.local_jobs(tmp_path / "state"):
        yield


def submitted(root: Path, model: Path, **worker: Any) -> ExperimentPaths:
    values = x.config(BATCHES, TRIALS, RANKS, searcher={"max_concurrent_trials": 1}, worker=worker)
    return x.submit({**values, "checkpoint_every_s": 0.5}, root, x.local_site(), model)


def noted(paths: ExperimentPaths, kind: str) -> list[dict[str, Any]]:
    """The notes of all workers of a kind, in their order."""
    lines = [
        line
        for worker in paths.root.glob("workers/*/journal.jsonl")
        for line in journal.read(worker)
        if line["kind"] == kind
    ]
    return sorted(lines, key=lambda line: str(line["t"]))


def nurseries(paths: ExperimentPaths) -> list[int]:
    """The nurseries of an experiment's workers."""
    workers = x.worker_pids(paths)
    return [
        pid
        for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
        if x.parent(pid) in workers and b"hpcdet.nursery" in line(pid)
    ]


def line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def trains(paths: ExperimentPaths, trial: int, beyond: int) -> None:
    """Until a trial has trained on behind so many batches, and saved."""
    x.until(lambda: x.progress(paths, trial) > beyond, lambda: x.story(paths))


def test_bits_and_reasons_are_those_of_cold_ranks_whatever_is_killed(
    tmp_path: Path, model: Path
) -> None:
    cold = submitted(tmp_path / "cold", model, warm="off")
    assert x.run_to_end(cold).state == "COMPLETED"
    assert [one["why"] for one in noted(cold, "cold")] == ["worker.warm: off"]

    warm = submitted(tmp_path / "warm", model)
    trains(warm, 1, 2)
    assert {x.parent(pid) for pid in x.rank_pids(warm)} == {*nurseries(warm)}
    x.strike(x.rank_pids(warm)[:1])  # a rank
    trains(warm, 1, x.progress(warm, 1) + 5)
    assert x.ends(warm, 1)[0] == "lost" and not noted(warm, "cold")
    x.strike(x.rank_pids(warm), signal.SIGUSR2)  # as a scheduler does
    x.until(lambda: x.ends(warm, 1)[1:2] not in ([], [""]), lambda: x.story(warm))
    trains(warm, 1, x.progress(warm, 1) + 2)
    whole = [*x.worker_pids(warm), *nurseries(warm), *x.rank_pids(warm)]
    x.strike(x.worker_pids(warm))  # the worker, and all with it
    x.until(lambda: not any(map(processes.started, whole)), lambda: x.story(warm))
    trains(warm, 2, 2)
    x.strike(nurseries(warm))
    assert x.run_to_end(warm).state == "COMPLETED", x.story(warm)

    assert [x.final_digest(warm, n) for n in (1, 2)] == [x.final_digest(cold, n) for n in (1, 2)]
    assert x.ends(warm, 2) == ["lost", "completed"], x.story(warm)
    [died] = noted(warm, "cold")
    assert died["why"] == "the nursery has ended, exit code -9"
    for trial in (1, 2):
        assert x.metric_rows(warm, trial)[-1] == x.metric_rows(cold, trial)[-1]
