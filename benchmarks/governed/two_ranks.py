"""The same split autoencoder on one process and on two, in float64: how far their steps differ."""

from __future__ import annotations

import functools
import socket
from typing import Any

import numpy as np
import torch
import torch.multiprocessing as processes
from torch import distributed

from governed.routed_training import Routed, policy
from governed.split_autoencoder import (
    BATCH,
    LAYERS,
    ROUTED,
    SETTINGS,
    ActivationGate,
    Split,
    pictures,
)

STEPS, WORLD = 20, 2
SETTING = SETTINGS["3"]  # without the correlation penalty, which is no mean over rows


def compare(seed: int) -> dict[str, Any]:
    """The largest difference of a parameter after any of 20 steps, ``SETTING`` on two ranks."""
    alone = _steps(seed, 0, 1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    queue = processes.get_context("spawn").SimpleQueue()
    running = processes.spawn(_rank, (seed, port, queue), nprocs=WORLD, join=False)
    together = queue.get()
    while not running.join():
        pass
    apart = [float((a - b).abs().max()) for a, b in zip(alone, together, strict=True)]
    return {"largest difference": max(apart), "first step": apart[0], "steps": len(apart)}


def _rank(rank: int, seed: int, port: int, queue: Any) -> None:
    torch.set_num_threads(1)
    at = f"tcp://127.0.0.1:{port}"
    distributed.init_process_group("gloo", init_method=at, rank=rank, world_size=WORLD)
    found = _steps(seed, rank, WORLD)
    if rank == 0:
        queue.put(found)
    distributed.barrier()
    distributed.destroy_process_group()


def _steps(seed: int, rank: int, world: int) -> list[torch.Tensor]:
    """All parameters after each step, each step as one vector."""
    torch.manual_seed(seed)
    model = Split(SETTING).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=5e-5)
    gates = [one for one in model.gates if isinstance(one, ActivationGate)]
    routed = Routed(policy(LAYERS, ROUTED), model, optimizer, gates)
    x, y, _, _ = pictures()
    draw = np.random.Generator(np.random.PCG64(seed))
    found = []
    for _ in range(STEPS):
        rows = torch.from_numpy(draw.choice(len(x), BATCH, replace=False))
        mine = rows.chunk(world)[rank]
        high = y[mine] >= 5
        codes = (~high).long().numpy()
        routed.backward(codes, functools.partial(model.loss, x[mine].double(), high))
        if world > 1:
            _average(model)
        routed.step()
        found.append(torch.cat([one.detach().reshape(-1) for one in model.parameters()]))
    return found


def _average(model: torch.nn.Module) -> None:
    for one in model.parameters():
        if one.grad is not None:
            distributed.all_reduce(one.grad)
            one.grad.div_(WORLD)
