"""The same digits with the Core API: a loop of one's own.

Alone: ``python train.py``. In an experiment: ``entrypoint: python3 train.py``.
"""

from __future__ import annotations

import torch
from model_def import Digits
from torch import nn

from hpcdet import core

ALONE = {"learning_rate": 0.003, "hidden": 32, "global_batch_size": 64}
REPORT_EVERY = 50


def evaluate(model: nn.Module) -> dict[str, float]:
    data = Digits(training=False)
    labels = torch.from_numpy(data.labels)
    with torch.no_grad():
        output = model(data.images)
    accuracy = (output.argmax(1) == labels).float().mean()
    loss = nn.functional.cross_entropy(output, labels)
    return {"validation_loss": float(loss), "accuracy": float(accuracy)}


def main(context: core.Context) -> None:
    hidden = context.hparams["hidden"]
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=context.hparams["learning_rate"])
    data = Digits(training=True)
    order = context.order(len(data), context.hparams["global_batch_size"])
    ranks = context.distributed

    step, records = 0, 0
    if state := context.checkpoint.latest():
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step, records = state["step"], state["records"]

    def save() -> None:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        context.checkpoint.save({**state, "step": step, "records": records}, step)

    def validate() -> None:
        context.train.report_validation_metrics(step, evaluate(model))

    batches = order.slices(records, ranks.rank, ranks.size)
    while step < context.searcher.length(default=300):
        if context.preempt.checkpoint_due:
            save()
        part = next(batches)
        samples = [data[index] for index in part.indices]
        images = torch.stack([image for image, _ in samples])
        labels = torch.tensor([label for _, label in samples])
        optimizer.zero_grad()
        # a share without weight repeats a sample, to keep step with the other ranks
        scale = (part.weight > 0) / part.records
        loss = nn.functional.cross_entropy(model(images), labels, reduction="sum") * scale
        loss.backward()
        if ranks.size > 1:
            for parameter in model.parameters():
                torch.distributed.all_reduce(parameter.grad)
        optimizer.step()
        step, records = step + 1, records + part.records
        if step % REPORT_EVERY == 0:
            context.train.report_training_metrics(step, {"loss": loss.item()})
        context.train.advance(step)
        if context.preempt.should_preempt():
            save()
            return
    validate()
    save()


if __name__ == "__main__":
    with core.init(hparams=ALONE) as context:
        main(context)
