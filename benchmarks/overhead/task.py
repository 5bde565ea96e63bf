"""What every loop of ``bench_overhead`` trains, and how it takes turns with the others."""

from __future__ import annotations

import functools
import json
import os
import time
from typing import Any

import torch
from torch import nn

RECORDS = 8192
REPORT = 100
"""Steps between two reports of the loss."""

SIZE: dict[str, Any] = json.loads(os.environ.get("BENCH_SIZE", "{}"))


def batch() -> int:
    """Samples of one rank in a step."""
    return int(SIZE["batch"])


def network() -> nn.Module:
    width = int(SIZE["width"])
    return nn.Sequential(
        nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


@functools.cache
def _samples() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(RECORDS, 784, generator=generator)
    return inputs, torch.randint(0, 10, (RECORDS,), generator=generator)


def turns(model: Any, optimizer: torch.optim.Optimizer) -> Any:
    """What is told of each step of hpcdet's: other loops train meanwhile, where the bench says."""
    if "beside" not in SIZE:
        return Turns()
    from paired import Paired

    return Paired(model, optimizer)


class Records(torch.utils.data.Dataset[Any]):
    """Samples in memory, one by one, as most data sets hand them out."""

    def __init__(self) -> None:
        self._inputs, self._labels = _samples()

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> Any:
        return self._inputs[index], self._labels[index]


class Words:
    """What a rank says to the bench, and the word that it waits for before it goes on."""

    def __init__(self) -> None:
        if torch.get_num_threads() != 1:
            raise SystemExit(f"{torch.get_num_threads()} threads: the others have one")
        self._reader, self._writer = map(int, os.environ["BENCH_PIPES"].split(","))

    def say(self, times: Any) -> None:
        """Say how long steps took; the bench may end this process."""
        os.write(self._writer, json.dumps(times).encode() + b"\n")
        if not os.read(self._reader, 1):
            os._exit(0)


class Turns:
    """Blocks of steps, one loop at a time: the others wait for a word on a pipe meanwhile.

    ``step`` is called at the beginning of each step. The time from one call to the next is a
    whole step, with everything that a loop does between two of them. The first block begins
    after half as many steps as it has: what comes every so many blocks then comes in their midst.
    """

    def __init__(self) -> None:
        self._words = Words()
        self._block = int(SIZE["block"])
        self._before = self._block // 2
        self._times: list[float] = []
        self._last = 0.0

    def step(self) -> None:
        """A step begins."""
        if self._before:
            self._before -= 1
            return
        now = time.perf_counter()
        if self._last:
            self._times.append(now - self._last)
        if not self._last or len(self._times) == self._block:
            self._words.say(self._times)
            self._times = []
            now = time.perf_counter()
        self._last = now
