"""Handwritten digits with Hugging Face's ``Trainer``.

Alone: ``python train.py``. In an experiment: ``hpcdet submit experiment.yaml``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import transformers
from sklearn.datasets import load_digits
from torch import nn

from hpcdet import core
from hpcdet.integrations import huggingface

ALONE = {"learning_rate": 0.003, "hidden": 64, "global_batch_size": 64}
VALIDATION = 360


class Classifier(nn.Module):
    """What the trainer wants: the loss comes with the output."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(64, hidden), nn.ReLU(), nn.Dropout(0.1), nn.Linear(hidden, 10)
        )

    def forward(self, pixels: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        output = self.layers(pixels)
        return {"loss": nn.functional.cross_entropy(output, labels), "logits": output}


def digits() -> list[dict[str, Any]]:
    images, labels = load_digits(return_X_y=True)
    images = images.astype(np.float32) / 16
    return [
        {"pixels": pixels, "labels": int(label)}
        for pixels, label in zip(images, labels, strict=True)
    ]


def accuracy(found: transformers.EvalPrediction) -> dict[str, float]:
    return {"accuracy": float((found.predictions.argmax(1) == found.label_ids).mean())}


def main(context: core.Context) -> None:
    samples = digits()
    trainer = transformers.Trainer(
        model=Classifier(context.hparams["hidden"]),
        args=huggingface.arguments(
            context,
            learning_rate=context.hparams["learning_rate"],
            num_train_epochs=2,  # where no searcher says a length
            logging_steps=10,
            eval_strategy="steps",
            eval_steps=20,
            per_device_eval_batch_size=120,
            label_names=["labels"],
        ),
        train_dataset=samples[:-VALIDATION],
        eval_dataset=samples[-VALIDATION:],
        compute_metrics=accuracy,
    )
    huggingface.train(context, trainer)


if __name__ == "__main__":
    with core.init(hparams=ALONE) as context:
        main(context)
