"""A trial that trains on a stream with state of its own, and what is left of it."""

from __future__ import annotations

import random
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    IterableDataset,
    RandomSampler,
    WeightedRandomSampler,
)

from hpcdet import pytorch


class Stream(IterableDataset[Any]):
    """Numbers and noise; ends after 37 and begins anew."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[Any]:
        while self.at < 37:
            self.at += 1
            yield torch.tensor([float(self.at)]) + torch.rand(1) + random.random()
        self.at = 0

    def __len__(self) -> int:
        return 37

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Memory:
    """A thing of the user's own that training depends on."""

    def __init__(self) -> None:
        self.mean = torch.zeros(())

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean = state["mean"]


class Streaming(pytorch.PyTorchTrial):
    """A line fitted to a stream, with memories that are registered."""

    workers = 0
    leave_at = -1

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        self.model = context.wrap_model(nn.Linear(1, 1))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), 1e-4))
        self.average = torch.optim.swa_utils.AveragedModel(nn.Linear(1, 1))
        context.register_state("average", self.average)
        self.memory = Memory()
        context.register_state("memory", self.memory, per_rank=True)
        self.noise = np.random.RandomState(3)
        context.register_generator("noise", self.noise)
        self.seen: list[float] = []

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(Stream(), 4, num_workers=self.workers)

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(Stream(), 8)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        if batch_idx == self.leave_at:
            signal.raise_signal(signal.SIGUSR2)
        self.seen += [float(one) for one in batch]
        self.memory.mean = 0.9 * self.memory.mean + 0.1 * batch.mean()
        noise = float(self.noise.standard_normal())
        far = self.average(batch).mean().detach() + self.memory.mean + noise
        loss = ((self.model(batch) - far) ** 2).mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        self.average.update_parameters(self.model)
        return loss

    def evaluate_batch(self, batch: Any, batch_idx: int) -> Any:
        return {"validation_loss": self.model(batch).mean(), "samples": float(len(batch))}

    def evaluation_reducer(self) -> Any:
        return {"validation_loss": pytorch.Reducer.AVG, "samples": pytorch.Reducer.SUM}


class Dice:
    """A sampler of somebody's own, with a generator that nobody else knows."""

    def __init__(self) -> None:
        self._hidden = {"dice": random.Random(5)}

    def __len__(self) -> int:
        return 22

    def __iter__(self) -> Iterator[int]:
        return iter(self._hidden["dice"].sample(range(22), 22))


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


OWN: dict[str, Callable[[], dict[str, Any]]] = {
    "random": lambda: {"sampler": RandomSampler(range(22), generator=generator())},
    "batches": lambda: {
        "batch_sampler": BatchSampler(
            WeightedRandomSampler([1.0] * 22, 22, replacement=False, generator=generator()), 4, True
        )
    },
    "own": lambda: {"sampler": Dice()},
}


def lines(log: Path, rank: int) -> list[list[int]]:
    text = log.with_name(f"{log.name}{rank}").read_text()
    return [[int(word) for word in line.split()] for line in text.split("\n")[:-1]] or [[-1]]


def samples(log: Path) -> dict[int, list[int]]:
    """Samples by epoch, in order; batches that were trained again must have been the same."""
    found: dict[int, list[int]] = defaultdict(list)
    by_batch: dict[tuple[int, int], list[int]] = {}
    for rank in range(2):
        for batch, epoch, *ids in lines(log, rank):
            assert by_batch.setdefault((batch, rank), [epoch, *ids]) == [epoch, *ids]
    for _, (epoch, *ids) in sorted(by_batch.items()):
        found[epoch] += ids
    return found
