"""A loop of one's own on the Core API under a policy: read by tests as a script.

Hyperparameters choose the optimizer, clipping, a scaler, and how many batches a step has. Global
batches are those of ``Order``; ``cut`` says how a batch is shared among the ranks. ``BEGIN=FILE``
gets the first parameters, ``GATE`` and ``LEAVE`` are those of ``governed_model``.
"""

import os
import signal
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from hpcdet import core

SIZES = {"a": 30, "b": 20, "c": 12}


def points(source):
    draw = np.random.Generator(np.random.PCG64(ord(source)))
    return torch.from_numpy(draw.standard_normal((SIZES[source], 6), dtype=np.float32))


def gate(where):
    folder = Path(os.environ.get("GATES", "."))
    rank = os.environ.get("RANK", "0")
    if os.environ.get("LEAVE") == where:
        os.kill(os.getpid(), signal.SIGUSR2)
    if os.environ.get("GATE") != where or (folder / f"reached-{rank}").exists():
        return
    (folder / f"reached-{rank}").touch()
    while not (folder / "open").exists():
        time.sleep(0.005)


def shares(whole, rank, world, cut):
    """This rank's rows of a global batch: even, uneven, or by source."""
    if cut == "even":
        return np.array_split(whole, world)[rank]
    if cut == "first":  # rank 0 has most, the last may have none
        bounds = [0, *(len(whole) - (world - 1 - r) // 2 for r in range(world))]
        return whole[bounds[rank] : bounds[rank + 1]]
    ordered = np.sort(whole)  # sources lie one behind the other: a rank has one or two
    return np.array_split(ordered, world)[rank]


class Net(nn.Sequential):
    def __init__(self, drop):
        super().__init__(
            *(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Dropout(drop)),
            *(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)),
        )


def main():
    with core.init() as context:
        train(context)


def train(context):
    hparams, governance = context.hparams, context.governance
    rank, world = context.distributed.rank, context.distributed.size
    dtype = getattr(torch, hparams.get("dtype", "float32"))
    x = torch.cat([points(name) for name in SIZES])
    y = torch.sin(x.sum(1)).to(dtype)
    x = x.to(dtype)
    names = np.repeat(list(SIZES), list(SIZES.values()))
    plain = governance.model(Net(hparams.get("drop", 0.0)).to(dtype))
    if "BEGIN" in os.environ and rank == 0:
        torch.save(plain.state_dict(), os.environ["BEGIN"])
    model = DistributedDataParallel(plain) if world > 1 else plain
    kind = getattr(torch.optim, hparams.get("optimizer", "AdamW"))
    optimizer = kind(model.parameters(), **hparams.get("options", {"lr": 0.01}))
    if hparams.get("named"):
        governance.optimizer(optimizer)
    scaler = torch.amp.GradScaler("cpu") if hparams.get("scaler") else None
    clip = hparams.get("clip")
    every = hparams.get("every", 1)
    step = records = 0
    if (state := context.checkpoint.latest()) is not None:
        plain.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        if scaler is not None:
            scaler.load_state_dict(state["scaler"])
        step, records = state["step"], state["records"]
        for one, gradient in zip(plain.parameters(), state["gradients"], strict=True):
            one.grad = gradient
    order = context.order(len(x), hparams["global_batch_size"])
    until = context.searcher.length(9)
    for whole in order.slices(records, 0, 1):
        if step == until:
            break
        gate(f"train:{step}")
        rows = shares(whole.indices, rank, world, hparams.get("cut", "even"))
        counts = None
        if hparams.get("counted"):
            there = names[whole.indices]
            counts = {name: int((there == name).sum()) for name in SIZES}
        with governance.batch(sources=list(names[rows]), counts=counts) as batch:

            def losses(part):
                return functional.mse_loss(plain(part[0])[:, 0], part[1], reduction="none")

            batch.probe(losses, (x[rows], y[rows]))
            loss = functional.mse_loss(model(x[rows])[:, 0], y[rows]) * batch.weight / every
            governance.backward(loss if scaler is None else scaler.scale(loss))
        step, records = step + 1, records + len(whole.indices)
        if step % every == 0:
            limited = None if clip is None else lambda p: nn.utils.clip_grad_norm_(p, clip)
            governance.step(optimizer, clip_grads=limited, scaler=scaler)
            if scaler is not None:
                scaler.update()
        context.train.report_training_metrics(step, {"loss": float(loss.detach())})
        leave = context.preempt.should_preempt()
        if leave or step % hparams.get("save_every", 4) == 0 or step == until:
            context.train.report_validation_metrics(
                step, {"validation_loss": 1.0 / step, "records": records}
            )
            context.checkpoint.save(
                {
                    "model": plain.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "scaler": scaler.state_dict() if scaler is not None else {},
                    "gradients": [one.grad for one in plain.parameters()],
                    "step": step,
                    "records": records,
                },
                step,
            )
        if leave:
            return


main()
