"""Handwritten digits with Lightning's Trainer.

Alone: ``python train.py``. In an experiment: ``hpcdet submit experiment.yaml``.
"""

from __future__ import annotations

import lightning as pl
import torch
from digits import Digits
from torch import nn
from torch.utils.data import DataLoader

from hpcdet import core
from hpcdet.integrations import lightning

ALONE = {"learning_rate": 0.003, "hidden": 64, "global_batch_size": 64}


class Classifier(pl.LightningModule):
    def __init__(self, hidden: int, learning_rate: float) -> None:
        super().__init__()
        self.rate = learning_rate
        self.layers = nn.Sequential(
            nn.Linear(64, hidden), nn.ReLU(), nn.Dropout(0.1), nn.Linear(hidden, 10)
        )

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        images, labels = batch
        loss = nn.functional.cross_entropy(self.layers(images), labels)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        images, labels = batch
        output = self.layers(images)
        loss = nn.functional.cross_entropy(output, labels)
        self.log("validation_loss", loss, sync_dist=True)
        self.log("accuracy", (output.argmax(1) == labels).float().mean(), sync_dist=True)

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.Adam(self.parameters(), lr=self.rate)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 20, 0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main(context: core.Context) -> None:
    settings = lightning.arguments(context, log_every_n_steps=10)
    if context.searcher.until is None:
        settings["max_epochs"] = 2
    module = Classifier(context.hparams["hidden"], context.hparams["learning_rate"])
    batch = context.hparams["global_batch_size"]
    lightning.fit(
        context,
        pl.Trainer(**settings),
        module,
        lightning.Loader(context, Digits(training=True), batch),
        DataLoader(Digits(training=False), 120),
    )


if __name__ == "__main__":
    with core.init(hparams=ALONE) as context:
        main(context)
