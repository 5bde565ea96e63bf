"""Trials trained inside the test's own process, as ``python train.py`` does."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from hpcdet import pytorch
from hpcdet.checkpoint import Manifest, committed
from hpcdet.data import rng
from hpcdet.process import signals


@pytest.fixture
def as_script() -> Iterator[None]:
    """Signals and random generators are the test process's own again afterwards."""
    numbers = (signal.SIGTERM, signal.SIGUSR2, signal.SIGUSR1, signal.SIGCONT)
    before = {number: signal.getsignal(number) for number in numbers}
    state = rng.capture_cpu()
    yield
    signals.forget()
    rng.restore_cpu(state)
    for number, handler in before.items():
        signal.signal(number, handler)


def train(
    trial: type[pytorch.PyTorchTrial],
    storage: Path,
    batches: int,
    hparams: Mapping[str, Any] | None = None,
    aggregation: int = 1,
    **fit: Any,
) -> Any:
    """Train a trial until so many batches; returns it."""
    signals.forget()
    with pytorch.init(
        hparams=hparams or {"global_batch_size": 16},
        checkpoint_storage=str(storage),
        seed=7,
        aggregation_frequency=aggregation,
    ) as context:
        made = trial(context)
        pytorch.Trainer(made, context).fit(max_length=pytorch.Batch(batches), **fit)
        return made


def checkpoints(storage: Path) -> list[Manifest]:
    """All checkpoints of a script, oldest first."""
    return committed(storage / "checkpoints")
