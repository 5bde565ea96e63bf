"""``bench_overhead``: what hpcdet is compared with.

``python peers.py bare|saving|fabric|determined``
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import task
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ENDLESS = 1_000_000


def batches(data: Any) -> Any:
    """A loader's batches of this rank, without end."""
    sampler: Any = DistributedSampler(data) if WORLD > 1 else RandomSampler(data)
    loader: DataLoader[Any] = DataLoader(data, task.batch(), sampler=sampler, drop_last=True)
    for epoch in range(ENDLESS):
        if WORLD > 1:
            sampler.set_epoch(epoch)
        yield from loader


def report(total: torch.Tensor, step: int) -> None:
    """Print the mean loss from time to time."""
    if step % task.REPORT == 0:
        mean = total.item() / task.REPORT
        total.zero_()
        if RANK == 0:
            print(step, mean, flush=True)


def save(model: Any, optimizer: torch.optim.Optimizer, step: int) -> None:
    """A checkpoint as people write it: rank 0's, durable, in place of the one before."""
    if RANK == 0 and step % task.SIZE["checkpoint"] == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        with Path("checkpoint.new").open("wb") as file:
            torch.save(state, file)
            os.fsync(file.fileno())
        Path("checkpoint.new").replace("checkpoint.pt")


def by_hand(model: Any, optimizer: Any, saves: bool = False) -> Iterator[None]:
    """The loop that anybody writes by hand, no notice, no resume; gives way before each step."""
    total = torch.zeros(())
    for step, (inputs, labels) in enumerate(batches(task.Records()), 1):
        yield
        loss = cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total += loss.detach()
        report(total, step)
        if saves:
            save(model, optimizer, step)


def with_fabric(made: Any, model: Any, optimizer: Any) -> Iterator[None]:
    """The same loop with Lightning Fabric."""
    total = torch.zeros(())
    for step, (inputs, labels) in enumerate(batches(task.Records()), 1):
        yield
        loss = cross_entropy(model(inputs), labels)
        made.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        total += loss.detach()
        report(total, step)


def launched(ready: bool = False) -> Any:
    """A Fabric; ``ready``: of models that are distributed already."""
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.environments import TorchElasticEnvironment
    from lightning_fabric.strategies import DDPStrategy

    class Ready(DDPStrategy):
        def setup_module(self, module: Any) -> Any:
            return module

    os.environ.update({"TORCHELASTIC_RUN_ID": "bench", "GROUP_RANK": "0"})
    strategy: Any = "auto"
    if WORLD > 1:
        kind = Ready if ready else DDPStrategy
        environment = TorchElasticEnvironment()
        strategy = kind(process_group_backend="gloo", cluster_environment=environment)
    made = Fabric(accelerator="cpu", devices=WORLD, strategy=strategy)
    made.launch()
    return made


def turns(steps: Iterator[None]) -> None:
    """Go through a loop, in turn with those of other processes."""
    between = task.Turns()
    for _ in steps:
        between.step()


def saving() -> None:
    """The hand-written loop, with checkpoints."""
    bare(saves=True)


def bare(saves: bool = False) -> None:
    """The hand-written loop."""
    if WORLD > 1:
        dist.init_process_group("gloo")
    model: Any = task.network()
    optimizer = task.optimizer(model)
    if WORLD > 1:
        model = DistributedDataParallel(model)
    turns(by_hand(model, optimizer, saves))


def fabric() -> None:
    """Lightning Fabric's."""
    made = launched()
    model: Any = task.network()
    turns(with_fabric(made, *made.setup(model, task.optimizer(model))))


def determined() -> None:
    """Determined's own Trainer in local mode, with the very trial that hpcdet trains."""
    distributed = None
    if WORLD > 1:
        os.environ |= {"USE_TORCH_DISTRIBUTED": "True", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1"}
        dist.init_process_group("gloo")
    from determined import core, pytorch
    from model_def import Trial

    if WORLD > 1:
        distributed = core.DistributedContext.from_torch_distributed()
    hparams = {"global_batch_size": task.batch() * WORLD}
    with pytorch.init(hparams=hparams, distributed=distributed, exp_conf={}) as context:
        trainer = pytorch.Trainer(Trial(context), context)
        trainer.fit(max_length=pytorch.Batch(ENDLESS))


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    {"bare": bare, "saving": saving, "fabric": fabric, "determined": determined}[sys.argv[1]]()
