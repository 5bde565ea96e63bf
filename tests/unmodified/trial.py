"""A trial in Determined's style, its imports as they are there."""

import argparse
import logging

import determined as det
import torch
from determined import pytorch
from determined.pytorch import samplers


class Line(torch.nn.Module):
    """What code asks of its model beside calling it."""

    def __init__(self, slope):
        super().__init__()
        self.slope = torch.nn.Parameter(torch.tensor([slope]))
        self.calls = 0
        self.config = {"kind": "line"}

    def forward(self, x):
        self.calls += 1
        return self.slope * x

    def init_hidden(self, size):
        return torch.zeros(size)


class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, index):
        return torch.tensor([float(index % 7)]), torch.tensor([float(index % 7) * 3])


class LineTrial(pytorch.PyTorchTrial):
    def __init__(self, context: det.TrialContext, hparams: dict) -> None:
        self.context = context
        self.model = context.wrap_model(Line(hparams["slope"]))
        assert self.model.config["kind"] == "line"
        # the class itself on one rank; on several DDP's, which passes on what the model has
        assert isinstance(self.model, (Line, torch.nn.parallel.DistributedDataParallel))
        assert isinstance(getattr(self.model, "module", self.model), Line)
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), 0.003))

    def build_training_data_loader(self):
        return pytorch.DataLoader(Points(), batch_size=2, shuffle=True)

    def build_validation_data_loader(self):
        return pytorch.DataLoader(Points(), batch_size=8)

    def train_batch(self, batch: pytorch.TorchData, epoch_idx: int, batch_idx: int):
        x, y = batch
        hidden = self.model.init_hidden(x.shape)
        loss = ((self.model(x) + hidden - y) ** 2).mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: pytorch.TorchData):
        x, y = batch
        return {"validation_loss": ((self.model(x) - y) ** 2).mean().item()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int)
    args = parser.parse_args()
    info = det.get_cluster_info()
    assert info is not None and len(info.container_addrs) == 1
    assert len(info.slot_ids) == 2 and info.container_rank == 0
    assert list(samplers.RepeatBatchSampler(batch_sampler=[[1]]).__iter__().__next__()) == [1]
    with pytorch.init() as context:
        trial = LineTrial(context, det.util.merge_dicts({"slope": 0.0}, info.trial.hparams))
        trainer = pytorch.Trainer(trial, context)
        trainer.fit(
            max_length=pytorch.Batch(args.batches),
            latest_checkpoint=info.latest_checkpoint,
            validation_period=pytorch.Batch(8),
            checkpoint_period=pytorch.Batch(8),
        )


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format=det.LOG_FORMAT)
    main()
