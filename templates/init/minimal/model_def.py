import math

import torch
from torch import nn

from hpcdet import pytorch


def spirals(points, seed):
    draw = torch.Generator().manual_seed(seed)
    label = torch.randint(0, 2, (points,), generator=draw)
    turn = 3 * math.pi * torch.rand(points, generator=draw).sqrt()
    angle = turn + math.pi * label
    place = torch.stack((angle.cos(), angle.sin()), 1) * turn[:, None] / 10
    return torch.utils.data.TensorDataset(place, label)


class SpiralsTrial(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(
            nn.Sequential(
                nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2)
            )
        )
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters()))

    def build_training_data_loader(self):
        size = self.context.get_per_slot_batch_size()
        return pytorch.DataLoader(spirals(2048, seed=1), batch_size=size, shuffle=True)

    def build_validation_data_loader(self):
        return pytorch.DataLoader(spirals(512, seed=2), batch_size=128)

    def loss(self, batch):
        places, labels = batch
        return nn.functional.cross_entropy(self.model(places), labels)

    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = self.loss(batch)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch, batch_idx):
        return {"validation_loss": self.loss(batch)}
