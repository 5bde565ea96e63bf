"""The trial of ``bench_overhead``: the same class for hpcdet and for Determined."""

from __future__ import annotations

import os
from typing import Any

import task
from torch.nn.functional import cross_entropy

if os.environ.get("BENCH_METHOD") == "determined":
    from determined import pytorch
else:
    from hpcdet import pytorch


class Trial(pytorch.PyTorchTrial):  # type: ignore[misc,name-defined]
    def __init__(self, context: Any) -> None:
        self.context = context
        self.model = context.wrap_model(task.network())
        self.optimizer = context.wrap_optimizer(task.optimizer(self.model))
        self.turns = task.turns(self.model, self.optimizer)

    def build_training_data_loader(self) -> Any:
        batch = self.context.get_per_slot_batch_size()
        return pytorch.DataLoader(task.Records(), batch, shuffle=True, drop_last=True)

    def build_validation_data_loader(self) -> Any:
        return pytorch.DataLoader(task.Records(), self.context.get_per_slot_batch_size())

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        self.turns.step()
        inputs, labels = batch
        loss = cross_entropy(self.model(inputs), labels)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        inputs, labels = batch
        return {"validation_loss": cross_entropy(self.model(inputs), labels)}
