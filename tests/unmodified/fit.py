"""Keras's ``fit`` with Determined's callbacks."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import determined as det
import determined.keras
import keras
import numpy as np


def main(core_context, info):
    draw = np.random.default_rng(3)
    x = draw.random((64, 4)).astype("float32")
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dropout(0.2), keras.layers.Dense(3), keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.Adam(0.01), "mse")
    callback = det.keras.DeterminedCallback(
        core_context,
        checkpoint=info.latest_checkpoint,
        continue_id=info.trial.trial_id,
        checkpoint_epochs=5,
    )
    data = {"x": x, "y": x.sum(1), "validation_data": (x, x.sum(1)), "shuffle": False}
    model.fit(batch_size=8, epochs=40, verbose=0, callbacks=[callback], **data)


if __name__ == "__main__":
    info = det.get_cluster_info()
    with det.core.init() as core_context:
        main(core_context, info)
