"""``bench_overhead``: hpcdet's Core API under a loop of one's own."""

from __future__ import annotations

import itertools

import task
import torch
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from hpcdet import core

with core.init() as context:
    ranks = context.distributed
    model = task.network()
    optimizer = task.optimizer(model)
    parallel = DistributedDataParallel(model) if ranks.size > 1 else model
    data = task.Records()
    order = context.order(len(data), task.batch() * ranks.size)
    parts = order.slices(0, ranks.rank, ranks.size)
    profiler = context.profiler
    total = torch.zeros(())
    turns = task.turns(parallel, optimizer)
    for step in itertools.count(1):
        turns.step()
        with profiler.phase("data"):
            part = next(parts)
            inputs, labels = torch.utils.data.default_collate(
                [data[i] for i in part.indices.tolist()]
            )
        with profiler.phase("forward"):
            loss = cross_entropy(parallel(inputs), labels)
        with profiler.phase("backward"):
            loss.backward()
        with profiler.phase("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        profiler.count(part.records)
        total += loss.detach()
        if step % task.REPORT == 0:
            mean = total.item() / task.REPORT
            context.train.report_training_metrics(step, {"loss": mean})
            total.zero_()
        if step % task.SIZE["checkpoint"] == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            context.checkpoint.save({**state, "step": step}, step)
        if context.preempt.should_preempt():
            break
