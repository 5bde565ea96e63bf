"""Handwritten digits with DeepSpeed's engine (ZeRO stage 1).

Alone: ``python train.py``. In an experiment: ``hpcdet submit experiment.yaml``.
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from hpcdet import core
from hpcdet.integrations import deepspeed

ALONE = {"learning_rate": 0.003, "hidden": 64, "global_batch_size": 64}
VALIDATION = 360


def main(context: core.Context) -> None:
    images, labels = load_digits(return_X_y=True)
    images = torch.from_numpy(images.astype(np.float32) / 16)
    labels = torch.from_numpy(labels)
    hidden = context.hparams["hidden"]
    network = nn.Sequential(
        nn.Linear(64, hidden), nn.ReLU(), nn.Dropout(0.1), nn.Linear(hidden, 10)
    )
    batch = context.hparams["global_batch_size"]
    engine, *_ = deepspeed.initialize(
        context,
        model=network,
        optimizer=torch.optim.Adam(network.parameters(), lr=context.hparams["learning_rate"]),
        config={
            "train_batch_size": batch,
            "zero_optimization": {"stage": 1},
            "zero_allow_untested_optimizer": True,
        },
    )
    known = deepspeed.restore(context, engine) or {"step": 0, "records": 0}
    step, records = known["step"], known["records"]
    begun = step
    ranks = context.distributed
    size = (len(images) - VALIDATION) // batch * batch  # full batches, which ranks share evenly
    order = context.order(size, batch).slices(records, ranks.rank, ranks.size)
    length = context.searcher.length(default=44)
    while step < length:
        part = next(order)
        loss = nn.functional.cross_entropy(
            engine(images[part.indices].to(engine.device)), labels[part.indices].to(engine.device)
        )
        engine.backward(loss)
        engine.step()
        step, records = step + 1, records + part.records
        context.train.report_training_metrics(step, {"loss": loss.item()})
        leave = context.preempt.should_preempt()
        if leave or (context.preempt.checkpoint_due and step < length):
            deepspeed.save(context, engine, step, {"step": step, "records": records})
        if leave:
            return
    if step > begun:
        engine.eval()
        with torch.no_grad():
            output = engine(images[-VALIDATION:].to(engine.device)).cpu()
        found = nn.functional.cross_entropy(output, labels[-VALIDATION:])
        context.train.report_validation_metrics(step, {"validation_loss": found.item()})
        deepspeed.save(context, engine, step, {"step": step, "records": records})


if __name__ == "__main__":
    with core.init(hparams=ALONE) as context:
        main(context)
