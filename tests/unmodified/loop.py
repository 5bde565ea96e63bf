"""A loop of its own on several ranks, with a process group of its own, as Determined has them."""

import random

import determined
import determined.core
import torch
import torch.distributed as dist
from determined.experimental import core_v2


def main():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    distributed = core_v2.DistributedContext.from_torch_distributed()
    core_v2.init(config=core_v2.Config(name="loop"), distributed=distributed)
    rank, total, start = dist.get_rank(), torch.zeros(1), 0
    latest = core_v2.info.latest_checkpoint
    if latest is not None:
        with core_v2.checkpoint.restore_path(latest) as path:
            start, seen = (path / f"state_{rank}").read_text().split(",")
            start, total = int(start), torch.tensor([float(seen)])
    for step in range(start, 30):
        part = torch.ones(1) * (rank + step)
        dist.all_reduce(part)
        total += part
        if rank == step % 2:
            core_v2.train.report_training_metrics(step + 1, {"noise": random.random()})
        if (step + 1) % 5:
            continue
        with core_v2.checkpoint.store_path({"steps_completed": step + 1}, shard=True) as (path, _):
            (path / f"state_{rank}").write_text(f"{step + 1},{total.item()}")
    if rank == 0:
        core_v2.train.report_validation_metrics(30, {"total": total.item()})
        print("see", core_v2.url_reverse_webui_exp_view(), core_v2.info._trial_info.experiment_id)
    assert isinstance(core_v2.distributed, determined.core.DistributedContext.__mro__[1])
    core_v2.close()


if __name__ == "__main__":
    main()
