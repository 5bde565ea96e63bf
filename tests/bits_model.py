"""A trial in which everything that a checkpoint must hold matters: read by tests as model code.

``GATE=train:5`` makes all ranks wait before their sixth batch until the file ``$GATES/open``
is there; ``GATE=validate:8:1`` inside the validation after eight batches. ``LEAVE=5`` makes
a rank notify itself then. The hyperparameter ``own_accumulation`` makes the code itself, and not
the trainer, sum up the gradients of so many batches, each rank for itself (``no_sync``); with
``scaled`` it has a gradient scaler, whose powers of two change no bit of the gradients.
``precision`` is that of autocast: ``bf16``, or ``fp16`` with a scaler that soon overflows.
``STOP=3:2`` makes the fourth rank ask to end in its third batch, ``PACE=0.006`` makes each batch
take so many seconds longer.
``SEEN=FILE`` takes down which samples were trained: lines of epoch, batch and their numbers.
"""

import contextlib
import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from hpcdet import pytorch

SIZE = 82  # 16 a batch: the last of an epoch has 2 samples, fewer than there are ranks


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


class Points:
    """Random points; augmentation draws from all three libraries."""

    def __init__(self, training):
        draw = np.random.Generator(np.random.PCG64(5))
        self.x = draw.standard_normal((SIZE, 24), dtype=np.float32)
        self.y = (self.x[:, 0] > 0).astype(np.int64)
        self.training = training

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        x = torch.from_numpy(self.x[index])
        if self.training:
            x = x + 0.1 * torch.randn(24) + 0.1 * np.random.randn() + 0.1 * random.random()
        return x.float(), self.y[index], index


class Center(nn.Module):
    """Batch normalisation's essence, a buffer that training changes, for single samples, too."""

    def __init__(self, width):
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("steps", torch.zeros(()), persistent=False)

    def forward(self, x):
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
            self.steps.add_(1)
        return x - self.mean * (1 - 0.9**self.steps)


class Counter(pytorch.PyTorchCallback):
    """State that changes training: a growing weight of the penalty."""

    def __init__(self):
        self.epochs = 0
        self.validations = 0
        self.luck = 0.0

    def on_training_epoch_end(self, epoch_idx):
        self.epochs += 1

    def on_validation_start(self):
        self.validations += 1
        self.luck += random.random()  # between two batches

    def state_dict(self):
        return {"epochs": self.epochs, "validations": self.validations, "luck": self.luck}

    def load_state_dict(self, state):
        self.epochs, self.validations = state["epochs"], state["validations"]
        self.luck = state["luck"]


class BitsTrial(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        width = context.get_hparams().get("width", 16)
        if "WARM_UPS" in os.environ:
            from hpcdet.pytorch.gradients import ddp

            ddp._WARM_UPS = int(os.environ["WARM_UPS"])
        self.model = context.wrap_model(
            nn.Sequential(
                nn.Linear(24, width),
                Center(width),
                nn.ReLU(),
                nn.Dropout(0.4),
                nn.Linear(width, width),
                nn.ReLU(),
                nn.Linear(width, 2),
            )
        )
        self.optimizer = context.wrap_optimizer(torch.optim.AdamW(self.model.parameters(), lr=0.01))
        schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.93)
        context.wrap_lr_scheduler(schedule, pytorch.LRScheduler.StepMode.STEP_EVERY_BATCH)
        precision, scaled = (context.get_hparams().get(key) for key in ("precision", "scaled"))
        self.precision = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
        self.scaler = None
        if scaled or precision == "fp16":
            scale, growth = (1024.0, 3) if scaled else (2.0**17, 2)
            scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=growth)
            self.scaler = context.wrap_scaler(scaler)
        self.seen = context.wrap_reducer(sum, name="seen")
        self.noise = np.random.Generator(np.random.Philox(3))
        context.register_generator("noise", self.noise)
        self.counter = Counter()

    def build_callbacks(self):
        return {"counter": self.counter}

    def loader(self, training):
        workers = int(os.environ.get("WORKERS", "0"))
        return pytorch.DataLoader(
            Points(training),
            batch_size=self.context.get_per_slot_batch_size() if training else 3,
            shuffle=training,
            num_workers=workers,
        )

    def build_training_data_loader(self):
        return self.loader(True)

    def build_validation_data_loader(self):
        return self.loader(False)

    def train_batch(self, batch, epoch_idx, batch_idx):
        gate(f"train:{batch_idx}")
        time.sleep(float(os.environ.get("PACE", "0")))
        if os.environ.get("STOP") == f"{self.context.virtual_rank}:{batch_idx}":
            self.context.set_stop_requested(True)
        x, y, indices = batch
        if "SEEN" in os.environ and self.context.step.scale:
            with open(f"{os.environ['SEEN']}-{os.environ['RANK']}", "a") as seen:
                print(epoch_idx, batch_idx, *indices.tolist(), file=seen)
        x = x + 0.1 * torch.randn(()) + 0.1 * np.random.randn() + 0.1 * random.random()
        x = x + 0.1 * float(self.noise.standard_normal())
        penalty = 0.01 * self.counter.epochs + 0.01 * self.counter.validations
        own = self.context.get_hparams().get("own_accumulation", 1)
        steps = (batch_idx + 1) % own == 0
        with contextlib.nullcontext() if steps else self.model.no_sync():
            with torch.autocast("cpu", self.precision, enabled=self.precision is not None):
                loss = nn.functional.cross_entropy(self.model(x.float()), y)
            self.seen.update(len(y))
            loss = loss * (1 + penalty)
            self.context.backward(self.scaler.scale(loss) if self.scaler else loss)
        if steps:
            self.context.step_optimizer(
                self.optimizer,
                clip_grads=lambda parameters: nn.utils.clip_grad_norm_(parameters, 1.0),
                scaler=self.scaler,
            )
            if self.scaler and self.context.learning.steps_now:
                self.scaler.update()
        return {"loss": loss}

    def evaluate_batch(self, batch, batch_idx):
        gate(f"validate:{self.context.core.train.units.batches}:{batch_idx}")
        x, y, _ = batch
        x = x + 0.1 * torch.randn(x.shape) + 0.1 * random.random()
        self.seen.update(len(y))
        return {"validation_loss": nn.functional.cross_entropy(self.model(x), y)}
