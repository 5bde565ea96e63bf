"""The trial of ``bench_gpu``, and the same training as one writes it by hand."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from hpcdet import pytorch

INPUTS, CLASSES, RECORDS = 256, 10, 4096


def network(width: int, layers: int) -> nn.Module:
    parts: list[nn.Module] = [nn.Linear(INPUTS, width)]
    for _ in range(layers):
        parts += [nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, width)]
    return nn.Sequential(*parts, nn.ReLU(), nn.Linear(width, CLASSES))


def records() -> Any:
    made = torch.Generator().manual_seed(1)
    inputs = torch.randn(RECORDS, INPUTS, generator=made)
    return torch.utils.data.TensorDataset(inputs, torch.arange(RECORDS) % CLASSES)


class Stopwatch:
    """Seconds of a step, over all steps behind the first ``settle``.

    The device is waited for before the clock is read, and only then.
    """

    def __init__(self, device: torch.device, settle: int, steps: int) -> None:
        self._device = device
        self._ends = settle, steps
        self._read: list[float] = []

    def behind(self, steps: int) -> None:
        """So many steps lie behind."""
        if steps in self._ends:
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            self._read.append(time.perf_counter())
            says = os.environ.get("BENCH_SAYS")
            if len(self._read) == 2 and says and os.environ["RANK"] == "0":
                seconds = (self._read[1] - self._read[0]) / (self._ends[1] - self._ends[0])
                Path(says).write_text(json.dumps(seconds))


class Trial(pytorch.PyTorchTrial):
    def __init__(self, context: Any) -> None:
        self.context = context
        given = context.get_hparam
        if given("amp"):
            context.experimental.use_amp()
        self.model = context.wrap_model(network(given("width"), given("layers")))
        self.optimizer = context.wrap_optimizer(torch.optim.AdamW(self.model.parameters()))
        self.watch = Stopwatch(context.device, given("settle"), given("steps"))

    def build_training_data_loader(self) -> Any:
        size = self.context.get_per_slot_batch_size()
        return pytorch.DataLoader(records(), size, shuffle=True, drop_last=True)

    def build_validation_data_loader(self) -> Any:
        return pytorch.DataLoader([torch.zeros(1)] * self.context.distributed.size)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        self.watch.behind(batch_idx)
        if os.environ.get("BENCH_STOP_AT") == str(batch_idx):
            os.kill(os.getpid(), signal.Signals[os.environ["BENCH_STOP_BY"]])
        time.sleep(float(os.environ.get("BENCH_PACE_S", "0")))
        inputs, labels = batch
        loss = cross_entropy(self.model(inputs), labels)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"validation_loss": 0.0}


def by_hand(given: dict[str, Any], rank: int, world: int, environment: dict[str, str]) -> None:
    """The same steps in a loop without anything else, as one rank."""
    os.environ.update(environment)
    cuda = given["device"] == "cuda"
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    if world > 1:
        dist.init_process_group("nccl" if cuda else "gloo", rank=rank, world_size=world)
    model: Any = network(given["width"], given["layers"]).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    if world > 1:
        model = DistributedDataParallel(model, device_ids=[device] if cuda else None)
    amp = given["amp"] and cuda
    scaler = torch.amp.GradScaler("cuda", enabled=amp)
    order = torch.utils.data.RandomSampler(records(), num_samples=2**62, replacement=True)
    size = given["global_batch_size"] // world
    loader: Any = torch.utils.data.DataLoader(records(), size, sampler=order)
    watch = Stopwatch(device, given["settle"], given["steps"])
    for step, (inputs, labels) in enumerate(loader):
        watch.behind(step)
        if step == given["steps"]:
            break
        precision = torch.autocast("cuda") if amp else contextlib.nullcontext()
        with precision:
            loss = cross_entropy(
                model(inputs.to(device, non_blocking=True)), labels.to(device, non_blocking=True)
            )
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    if world > 1:
        dist.destroy_process_group()
