"""A small network, made from hyperparameters."""

from torch import nn

from hpcdet import pytorch


class Flat(nn.Module):
    def forward(self, *inputs: pytorch.TorchData):
        [batch] = inputs
        return batch.reshape(len(batch), -1)


def build_model(hparams):
    width = hparams["n_filters1"]
    return nn.Sequential(
        nn.Conv2d(1, width, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout2d(hparams["dropout1"]),
        Flat(),
        nn.Linear(9 * width, 10),
        nn.LogSoftmax(dim=1),
    )
