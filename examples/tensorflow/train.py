"""Handwritten digits with a TensorFlow loop.

Alone: ``python train.py``. In an experiment: ``hpcdet submit experiment.yaml``.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

from hpcdet import core
from hpcdet.integrations import tensorflow

ALONE = {"learning_rate": 0.1, "hidden": 64, "global_batch_size": 64}
VALIDATION = 360
MOMENTUM = 0.9


class Classifier(tf.Module):
    def __init__(self, hidden: int, random: tf.random.Generator) -> None:
        super().__init__()
        self.random = random
        self.first = tf.Variable(random.normal((64, hidden), stddev=0.1))
        self.second = tf.Variable(random.normal((hidden, 10), stddev=0.1))
        self.moments = [tf.Variable(tf.zeros_like(one)) for one in (self.first, self.second)]

    def __call__(self, images: tf.Tensor, keep: float = 1.0) -> tf.Tensor:
        hidden = tf.nn.relu(images @ self.first)
        if keep < 1:
            kept = self.random.uniform(tf.shape(hidden)) < keep
            hidden = tf.where(kept, hidden / keep, 0.0)
        return hidden @ self.second


def loss_of(output: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, output))


def main(context: core.Context) -> None:
    images, labels = load_digits(return_X_y=True)
    images = images.astype(np.float32) / 16
    random = tf.random.Generator.from_seed(context.seed)
    model = Classifier(context.hparams["hidden"], random)
    tracked = tensorflow.Tracked(context, model=model, random=random)
    step = begun = tracked.restore()
    length = context.searcher.length(default=44)
    data = (images[:-VALIDATION], labels[:-VALIDATION])
    batch = context.hparams["global_batch_size"]
    for pixels, digits in tensorflow.batches(context, data, batch, step):
        if step >= length:
            break
        with tf.GradientTape() as tape:
            loss = loss_of(model(pixels, keep=0.9), digits)
        weights = (model.first, model.second)
        for one, moment, slope in zip(
            weights, model.moments, tape.gradient(loss, weights), strict=True
        ):
            moment.assign(MOMENTUM * moment + slope)
            one.assign_sub(context.hparams["learning_rate"] * moment)
        step += 1
        context.train.report_training_metrics(step, {"loss": float(loss)})
        if context.preempt.should_preempt():
            tracked.save(step)
            return
        if context.preempt.checkpoint_due and step < length:
            tracked.save(step)
    if step > begun:
        output = model(images[-VALIDATION:])
        found = {"validation_loss": float(loss_of(output, labels[-VALIDATION:]))}
        context.train.report_validation_metrics(step, found)
        tracked.save(step)


if __name__ == "__main__":
    with core.init(hparams=ALONE) as context:
        main(context)
