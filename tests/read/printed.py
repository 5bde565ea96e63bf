"""Experiments with something in every view, and what the verbs that read print of them."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcdet.store.folder import records, trust
from hpcdet.store.fs import files
from hpcdet.store.trials.controls import BY_USER
from tests.builders import EPOCH, Builder, at, put, sweep
from tests.commands import Cli

NOW = EPOCH.timestamp() + 5000.0
ID = "digits-7f3a"

VERBS = (
    "ls",
    "ls --trials",
    f"status {ID}",
    f"show {ID}",
    f"best {ID}",
    f"metrics {ID}",
    f"metrics {ID} --all --x wall",
    f"metrics {ID} --group timing --last",
    f"events {ID}",
    f"schedule {ID}/1",
    f"logs {ID}",
    f"explain {ID}",
    f"eff {ID}",
    f"ckpt ls {ID} --deleted",
    f"searcher status {ID}",
    f"searcher replay {ID}",
)


def ended(root: Path) -> None:
    """The sweep of ``tests.builders``, with all that a folder may hold besides."""
    built = sweep(root, ended=False)
    built.job(error="no such partition")
    built.command("tag", add=["paper"], rm=["example"])
    built.command("set", max_concurrent=2)
    built.decide("command", seq=2, arguments={"max_concurrent": 2})
    built.decide("event", event={"kind": "report", "trial": 1, "length": {"batches": 100}})
    built.decide("action", action={"kind": "create", "trial": 2, "why": "drawn at random"})
    built.decide("throttle", job="123", running=1)
    built.close("COMPLETED", "every trial has ended")


def compared(root: Path) -> None:
    """A search with a constraint and two objectives, and one trial that nothing is known of."""
    objectives = [{"metric": "loss"}, {"metric": "speed", "smaller_is_better": False}]
    limit = [{"metric": "ms", "upper": 20, "tolerance": 10}]
    asked = {"name": "async_halving", "metric": "loss", "max_length": {"batches": 300}}
    asked |= {"divisor": 3, "num_rungs": 2, "max_trials": 4}  # type: ignore[dict-item]
    built = Builder(root, searcher={**asked, "objectives": objectives, "constraints": limit})
    for loss, speed, ms in ((0.5, 5, 9), (0.1, 9, 50), (0.9, 9, 9), (math.nan, 1, 1)):
        attempt = built.trial(hidden=int(ms), layers=[{"name": "conv", "channels": 16}]).attempt()
        attempt.metrics("validation", 100, loss=loss, speed=speed, ms=ms)
        attempt.end("paused")
    built.trial()


def infeasible(root: Path) -> None:
    """A search in which no trial keeps the constraint."""
    asked = {"name": "random", "metric": "loss", "max_length": {"batches": 300}}
    limit = [{"metric": "ms", "upper": 20}]
    built = Builder(root, searcher={**asked, "max_trials": 2, "constraints": limit})
    attempt = built.trial().attempt()
    attempt.metrics("validation", 100, loss=0.5, ms=30)
    attempt.end("completed")


def going(root: Path) -> None:
    """A search that goes on: an heir, a running attempt with records of its time, waiting jobs."""
    built = Builder(
        root,
        resources={"slots_per_trial": 2, "cpus_per_slot": 8, "memory_per_slot": 16 * 10**9},
        budget={"slot_hours": 100, "wall_s": 7200},
        profiling={"enabled": True},
        checkpoint_storage={"max_paused_bytes": 50},
    )
    built.job(tasks=3)
    built.worker(0)
    first = built.trial(hidden=16)
    attempt = first.attempt()
    attempt.line("unregistered", found=["an optimizer"])
    attempt.line("not_finite", group="training", step=40, names=["loss"])
    for rank in (0, 1):
        use = {"cpu_cores": 0.5, "rss_bytes_max": 2e9, "gpu_percent": 30.0}
        phases = {"data": 4.0 + rank, "forward": 2.0, "other": 1.0}
        told: dict[str, Any] = {"rank": rank, "host": f"n{rank}", "batches": 100, "steps": 50}
        told |= {"seconds": 7.0 + rank, "phases": phases, "use": use, "samples": 640}
        attempt.line("profile", **told)
    attempt.metrics("validation", 100, validation_loss=0.5)
    folder = attempt.checkpoint(100)
    attempt.end("paused")
    first.control("pause", why=BY_USER)
    heir = built.trial(hidden=24)
    origin = {"checkpoint": folder.name, "root": "r" * 64, "name": "00000100.g0"}
    origin |= {"digest": "d" * 64, "units": {"batches": 100}}  # type: ignore[dict-item]
    record = records.Trial(
        2, {"hidden": 24}, 8, parent="1@100 batches", created_at=at(60), origin=origin
    )
    put(heir.paths.record, record)
    own = heir.attempt(start=100, checkpoint="00000100.g0")
    own.metrics("training", 120, loss=0.4)
    own.log("2026-03-01T12:00:05Z WARNING slow\nepoch 3\n")
    built.trial(hidden=32)
    built.decide("retry", trial=2, attempts=4, why="a node failed")


MADE: dict[str, Callable[[Path], None]] = {
    made.__name__: made for made in (ended, compared, infeasible, going)
}


def printed(
    cli: Cli, name: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[list[str], str, str]]:
    """Yield the words of each command on one of these experiments, and what it writes."""
    monkeypatch.setattr(time, "time", lambda: NOW)
    monkeypatch.setattr(files, "now", lambda: at(5000.0))
    monkeypatch.setattr(trust, "user", lambda _: "ada")  # whoever runs the tests
    MADE[name](cli.root / ID)
    for path in [cli.root, *cli.root.rglob("*")]:
        os.utime(path, (NOW - 60, NOW - 60), follow_symlinks=False)
    for argv in VERBS:
        for form in ("json", "wide"):
            words = [*argv.split(), "--utc", "-o", form]
            ran = cli(*words)
            yield words, *(text.replace(str(cli.root), "ROOT") for text in (ran.out, ran.err))
