"""Split autoencoders on one process and on two gloo ranks, in float64: how far their steps differ.

Both ranks have some of each batch, the first of them more. The penalty on correlations is of the
whole batch: ranks add up their encodings for it.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.multiprocessing as processes
from numpy.typing import NDArray
from torch import distributed, nn
from torch.nn import functional

from governed.split_autoencoder import BATCH, SETTINGS, Batch, Split, pictures, route, sources

STEPS, WORLD = 20, 2
BOUNDS = (0, 156, BATCH)
"""Rank r has the rows of a batch from ``BOUNDS[r]`` up to ``BOUNDS[r + 1]``."""
Vectors = NDArray[np.float64]
"""All parameters after each step, float64[steps, parameters]."""


def compare(
    seed: int, steps: int = STEPS, settings: Sequence[str] = tuple(SETTINGS)
) -> dict[str, float]:
    """By setting the largest difference of a parameter after any of the steps."""
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(_rank, (seed, steps, settings, folder), nprocs=WORLD)
        return {
            name: float(np.abs(trace(name, seed, steps) - np.load(_file(folder, name))).max())
            for name in settings
        }


def _file(folder: str, name: str) -> Path:
    return Path(folder) / f"{name}.npy"


def _rank(rank: int, seed: int, steps: int, settings: Sequence[str], folder: str) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # no other user's connection
    at = f"file://{folder}/ranks"
    distributed.init_process_group("gloo", init_method=at, rank=rank, world_size=WORLD)
    for name in settings:
        found = trace(name, seed, steps, rank, WORLD)
        if rank == 0:
            np.save(_file(folder, name), found)
    distributed.destroy_process_group()


def trace(name: str, seed: int, steps: int, rank: int = 0, world: int = 1) -> Vectors:
    """The parameters after each step of one process; those of all ranks are alike."""
    torch.manual_seed(seed)
    setting = SETTINGS[name]
    model = Split(setting).double()
    routed = route(model, setting)
    begin, end = (BOUNDS[rank], BOUNDS[rank + 1]) if world > 1 else (0, BATCH)
    if world > 1:
        model.everyone = functools.partial(_everyone, begin, end)
    x, y, _, _ = pictures()
    draw = np.random.Generator(np.random.PCG64(seed))
    found = []
    for _ in range(steps):
        rows = torch.from_numpy(draw.choice(len(x), BATCH, replace=False))
        batch, mine = Batch.of(y[rows] >= 5, world), rows[begin:end]
        high = y[mine] >= 5
        routed.backward(sources(high), functools.partial(model.loss, x[mine].double(), high, batch))
        if world > 1:
            _average(model, world)
        routed.step()
        found.append(torch.cat([one.detach().reshape(-1) for one in model.parameters()]).numpy())
    return np.stack(found)


def _everyone(begin: int, end: int, z: torch.Tensor) -> torch.Tensor:
    """The whole batch's encodings, float[BATCH, 32]; their gradients return to who has them."""
    padded = functional.pad(z, (0, 0, begin, BATCH - end))
    whole: torch.Tensor = _Sum.apply(padded)  # type: ignore[no-untyped-call]
    return whole


class _Sum(torch.autograd.Function):
    """The sum over ranks, each of which has the gradients of all."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return _summed(x)

    @staticmethod
    def backward(ctx: Any, *gys: torch.Tensor) -> Any:
        return _summed(gys[0])


def _summed(x: torch.Tensor) -> torch.Tensor:
    found = x.contiguous().clone()
    distributed.all_reduce(found)
    return found


def _average(model: nn.Module, world: int) -> None:
    for one in model.parameters():
        if one.grad is not None:
            distributed.all_reduce(one.grad)
            one.grad.div_(world)
