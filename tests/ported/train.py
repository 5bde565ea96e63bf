"""A trial and its script as they are written for Determined, but for the imports."""

import argparse
import logging
import pathlib

import data
import model
import torch
import yaml
from torch import nn

import hpcdet.determined as det
from hpcdet import pytorch


class DigitsTrial(pytorch.PyTorchTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext, hparams) -> None:
        self.context = context
        self.per_slot_batch_size = 32 // self.context.distributed.get_size()
        self.loss_fn = nn.NLLLoss()
        self.model = self.context.wrap_model(model.build_model(hparams=hparams))
        self.optimizer = self.context.wrap_optimizer(
            torch.optim.Adadelta(self.model.parameters(), lr=hparams["learning_rate"])
        )

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(data.get_dataset(True), batch_size=self.per_slot_batch_size)

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(data.get_dataset(False), batch_size=self.per_slot_batch_size)

    def train_batch(self, batch: pytorch.TorchData, epoch_idx: int, batch_idx: int):
        images, labels = batch
        loss = self.loss_fn(self.model(images), labels)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: pytorch.TorchData, batch_idx: int):
        images, labels = batch
        output = self.model(images)
        right = output.argmax(dim=1).eq(labels).sum().item()
        return {
            "validation_loss": self.loss_fn(output, labels).item(),
            "accuracy": right / len(images),
        }


def run(max_length, local):
    info = det.get_cluster_info()
    if local:
        hparams = yaml.safe_load(pathlib.Path("const.yaml").read_text())["hyperparameters"]
        latest_checkpoint = None
    else:
        hparams = info.trial.hparams
        latest_checkpoint = info.latest_checkpoint
    with pytorch.init() as train_context:
        trial = DigitsTrial(train_context, hparams=hparams)
        trainer = pytorch.Trainer(trial, train_context)
        trainer.configure_profiler(enabled=False)
        trainer.fit(
            max_length=max_length,
            latest_checkpoint=latest_checkpoint,
            validation_period=pytorch.Batch(8),
            checkpoint_period=pytorch.Epoch([1]),
            reporting_period=pytorch.Batch(5),
            checkpoint_policy="all",
        )


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format=det.LOG_FORMAT)
    parser = argparse.ArgumentParser()
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--batches", type=int)
    group.add_argument("--epochs", type=int)
    args = parser.parse_args()
    length = pytorch.Batch(args.batches) if args.batches else pytorch.Epoch(args.epochs or 1)
    run(length, local=det.get_cluster_info() is None)
