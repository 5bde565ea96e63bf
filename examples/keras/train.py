"""Handwritten digits with Keras 3 on PyTorch.

Alone: ``python train.py``. In an experiment: ``hpcdet submit experiment.yaml``.
"""

from __future__ import annotations

import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.utils.data import TensorDataset

from hpcdet import core
from hpcdet.integrations import keras as training

ALONE = {"learning_rate": 0.003, "hidden": 64, "global_batch_size": 64}
VALIDATION = 360


def main(context: core.Context) -> None:
    images, labels = load_digits(return_X_y=True)
    images = images.astype(np.float32) / 16
    model = keras.Sequential(
        [
            keras.layers.Input((64,)),
            keras.layers.Dense(context.hparams["hidden"], activation="relu"),
            keras.layers.Dropout(0.1),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(context.hparams["learning_rate"]),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    samples = TensorDataset(
        torch.from_numpy(images[:-VALIDATION]), torch.from_numpy(labels[:-VALIDATION])
    )
    training.fit(
        context,
        model,
        training.Loader(context, samples, context.hparams["global_batch_size"]),
        epochs=2,  # where no searcher says a length
        validation_data=(images[-VALIDATION:], labels[-VALIDATION:]),
    )


if __name__ == "__main__":
    with core.init(hparams=ALONE) as context:
        main(context)
