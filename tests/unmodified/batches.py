"""Batch inference, as Determined has it."""

import pathlib

import torch
from determined import pytorch
from determined.pytorch import experimental


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 1201

    def __getitem__(self, index):
        return torch.tensor([float(index)])


class Total(pytorch.MetricReducer):
    def __init__(self):
        self.reset()

    def reset(self):
        self.total = 0.0

    def per_slot_reduce(self):
        return self.total

    def cross_slot_reduce(self, per_slot_metrics):
        return sum(per_slot_metrics)


class Doubling(experimental.TorchBatchProcessor):
    def __init__(self, context):
        self.context = context
        self.model = context.prepare_model_for_inference(torch.nn.Identity())
        self.total = context.wrap_reducer(Total(), name="total")

    def process_batch(self, batch, batch_idx) -> None:
        found = self.model(self.context.to_device(batch)) * 2
        self.total.total += found.sum().item()
        with self.context.upload_path() as path:
            torch.save(found, pathlib.Path(path, f"batch_{batch_idx}"))

    def on_finish(self):
        self.context.report_metrics("inference", 600, {"rank": self.context.get_distributed_rank()})


if __name__ == "__main__":
    experimental.torch_batch_process(Doubling, Numbers(), batch_size=1, checkpoint_interval=100)
