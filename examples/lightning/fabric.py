"""Handwritten digits with Lightning Fabric: the loop is yours.

Alone: ``python fabric.py``. In an experiment: ``entrypoint: python3 fabric.py``.
"""

from __future__ import annotations

import torch
from digits import Digits
from torch import nn

from hpcdet import core
from hpcdet.integrations import lightning

ALONE = {"learning_rate": 0.003, "hidden": 64, "global_batch_size": 64}


def main(context: core.Context) -> None:
    hidden = context.hparams["hidden"]
    fabric = lightning.fabric(context)
    network = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))
    adam = torch.optim.Adam(network.parameters(), lr=context.hparams["learning_rate"])
    model, optimizer = fabric.setup(network, adam)
    data = lightning.Loader(context, Digits(training=True), context.hparams["global_batch_size"])

    step = 0
    if state := context.checkpoint.latest():
        lightning.put_back(context, state, model=model, optimizer=optimizer)
        step = state["step"]
    begun = step

    def save() -> None:
        state = lightning.plain(model=model, optimizer=optimizer, step=step)
        context.checkpoint.save(state, step)

    length = context.searcher.length(default=44)
    while step < length:
        data.position.set(*divmod(step, len(data)))
        for images, labels in data:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(fabric.to_device(images)), labels)
            fabric.backward(loss)
            optimizer.step()
            step += 1
            context.train.report_training_metrics(step, {"loss": loss.item()})
            if context.preempt.should_preempt():
                save()
                return
            if context.preempt.checkpoint_due:
                save()
            if step == length:
                break
    test = Digits(training=False)
    with torch.no_grad():
        output = model(fabric.to_device(test.images))
    found = (output.argmax(1).cpu().numpy() == test.labels).mean()
    context.train.report_validation_metrics(step, {"accuracy": float(found)})
    if step > begun:
        save()


if __name__ == "__main__":
    with core.init(hparams=ALONE) as context:
        main(context)
