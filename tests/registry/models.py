"""Experiments with real checkpoints, and registries that hold some of them."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from hpcdet import checkpoint
from hpcdet.registry import add_version, registered_models
from hpcdet.registry.add_version import CheckpointSource
from hpcdet.registry.registered_models import Version
from tests.builders import Builder, TrialBuilder

LOSSES = {10: 0.5, 20: 0.2, 30: 0.3}


def saved(trial: TrialBuilder, losses: dict[int, float], end: str = "completed") -> None:
    """An attempt that reported and saved at each step."""
    attempt = trial.attempt(ranks=1)
    previous = ""
    for step, loss in losses.items():
        attempt.metrics("training", step, loss=loss * 2)
        attempt.metrics("validation", step, validation_loss=loss, accuracy=1 - loss)
        state = {"models": [{"w": torch.full((64,), loss)}], "step": step}
        known = {"kind": "kept", "batches": step, "metric": loss, "trial": trial.paths.number}
        folder = trial.paths.checkpoint(step, attempt.paths.number)
        made = checkpoint.save(folder, state, meta=known, previous=previous)
        previous = made.root
        attempt.line(
            "checkpoint",
            **{"name": folder.name, "step": step, "digest": made.digest, "bytes": made.bytes},
            **{"metric": loss, "kept": ["latest"]},
        )
        attempt.batches = step
    attempt.end(end)


def trained(root: Path, trials: int = 1, end: str = "completed") -> Builder:
    """An experiment that has ended; each trial a little worse than the one before."""
    built = Builder(root, description="Digits of a <b>museum</b>")
    (built.paths.code / "lib").mkdir()
    (built.paths.code / "lib" / "data.py").write_text("ROWS = 3\n")
    (built.paths.code / "same.py").symlink_to("model_def.py")
    for number in range(trials):
        trial = built.trial(hidden=32 + number, optimizer={"lr": 0.1}, bias=False)
        saved(trial, {step: loss + number / 10 for step, loss in LOSSES.items()}, end)
        if end != "completed":
            trial.control("fail")
    built.close("COMPLETED" if end == "completed" else "ERROR")
    return built


def source(built: Builder, step: int = 20, trial: int = 1) -> CheckpointSource:
    """A checkpoint of an experiment."""
    return CheckpointSource(built.paths, trial, built.paths.trial(trial).checkpoint(step, 1))


def content(folder: Path) -> str:
    """Verify every byte in this process."""
    return checkpoint.verify(folder).digest


def added(
    registry: Path, built: Builder, step: int = 20, trial: int = 1, semantic: str = ""
) -> Version:
    """Add a checkpoint to the model ``digits``."""
    return add_version.add(registry, "digits", source(built, step, trial), semantic, content)


def version(registry: Path, text: str = "digits") -> Version:
    return registered_models.version(registry, text)


def files(version: Version) -> list[Path]:
    """Every file of a version."""
    return sorted(path for path in version.paths.root.rglob("*") if path.is_file())


def tree(folder: Path) -> dict[str, bytes]:
    """The contents of all files below a folder, links by their targets, and its folders."""
    found: dict[str, bytes] = {}
    for path in sorted(folder.rglob("*")):
        data = path.read_bytes() if path.is_file() else b""
        link = path.is_symlink()
        found[path.relative_to(folder).as_posix()] = os.fsencode(path.readlink()) if link else data
    return found


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
