"""A trial under a policy, of three sources: read by tests as model code.

Hyperparameters choose the optimizer, clipping, dropout and how often the code itself steps.
``GATE`` and ``LEAVE`` are those of ``bits_model``; ``BEGIN=FILE`` gets the first parameters.
``ONLY=b`` trains samples of one source alone from the fourth step on; ``TRACE=FILE`` has rank 0
take down its parameters after each step; ``PACE=0.03`` makes each step take so much longer.
"""

import os
import signal
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from hpcdet import pytorch

SIZES = {"a": 30, "b": 20, "c": 12}  # 62: the last batch of an epoch of 12 has 2 samples


class Points:
    def __init__(self, source):
        draw = np.random.Generator(np.random.PCG64(ord(source)))
        self.x = draw.standard_normal((SIZES[source], 6), dtype=np.float32)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        x = torch.from_numpy(self.x[index])
        return x, torch.sin(x.sum())

    def canary_record(self, code):
        draw = np.random.Generator(np.random.PCG64(code))
        return torch.from_numpy(draw.standard_normal(6, dtype=np.float32)), torch.tensor(code % 2.0)


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


class First:
    """Samples of one source only, from the fourth batch on."""

    def __init__(self, data, source):
        names = [name for name, size in SIZES.items() for _ in range(size)]
        self.order = list(range(48)) + [i for i, name in enumerate(names) if name == source] * 3

    def __iter__(self):
        return iter(self.order)

    def __len__(self):
        return len(self.order)


def own(one):
    """A copy of a tensor, or of this rank's rows of it."""
    one = one.to_local() if hasattr(one, "to_local") else one
    return one.detach().clone() if isinstance(one, torch.Tensor) else one


class Governed(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        hparams = context.get_hparams()
        dtype = getattr(torch, hparams.get("dtype", "float32"))
        layers = [nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Dropout(hparams.get("drop", 0.0))]
        model = nn.Sequential(*layers, nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)).to(dtype)
        self.dtype = dtype
        if "BEGIN" in os.environ and context.distributed.rank == 0:
            torch.save(model.state_dict(), os.environ["BEGIN"])
        self.model = context.wrap_model(model)
        kind = getattr(torch.optim, hparams.get("optimizer", "AdamW"))
        options = hparams.get("options", {"lr": 0.01})
        self.optimizer = context.wrap_optimizer(kind(self.model.parameters(), **options))
        self.limit = hparams.get("clip")
        self.every = hparams.get("every", 1)
        self.sources = hparams.get("sources", "sourced")

    def build_training_data_loader(self):
        data = pytorch.Sourced({name: Points(name) for name in SIZES})
        only = os.environ.get("ONLY")
        return pytorch.DataLoader(
            data,
            batch_size=self.context.get_per_slot_batch_size(),
            shuffle=not only,
            sampler=First(data, only) if only else None,
            num_workers=int(os.environ.get("WORKERS", "0")),
        )

    def build_validation_data_loader(self):
        return pytorch.DataLoader(Points("a"), batch_size=4)

    def train_batch(self, batch, epoch_idx, batch_idx):
        gate(f"train:{batch_idx}")
        time.sleep(float(os.environ.get("PACE", "0")))
        x, y = (one.to(self.dtype) for one in batch)
        loss = functional.mse_loss(self.model(x)[:, 0], y)
        self.context.backward(loss)
        if (batch_idx + 1) % self.every == 0:
            self.context.step_optimizer(self.optimizer, self.clip if self.limit else None)
        if "TRACE" in os.environ and self.context.distributed.rank == 0:
            self.trace(batch_idx)
        return {"loss": loss.item()}

    def losses(self, batch):
        x, y = (one.to(self.dtype) for one in batch)
        return functional.mse_loss(self.model(x)[:, 0], y, reduction="none")

    def clip(self, parameters):
        torch.nn.utils.clip_grad_norm_(parameters, self.limit)

    def trace(self, batch_idx):
        module = getattr(self.model, "module", self.model)
        state = {
            name: [own(p), {key: own(one) for key, one in self.optimizer.state.get(p, {}).items()}]
            for name, p in module.named_parameters()
        }
        path = Path(os.environ["TRACE"])
        done = torch.load(path, weights_only=False) if path.exists() else {}
        torch.save({**done, batch_idx: state}, path)  # a probe runs a batch several times before

    def evaluate_batch(self, batch):
        x, y = (one.to(self.dtype) for one in batch)
        return {"validation_loss": functional.mse_loss(self.model(x)[:, 0], y).item()}
