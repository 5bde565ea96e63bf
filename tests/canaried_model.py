"""Trials of two sources with canaries: a small classifier, and a small model of characters.

Source ``b`` may change nothing under the policies of the tests. Read by tests as model code.
"""

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from hpcdet import pytorch

SIZE = 200
ALPHABET = "\n ,.0123456789abcdefghijklmnopqrstuvwxyz"
CONTEXT, LENGTH = 8, 24


class Clusters:
    """Points of ten clusters, with the number of their cluster; canaries are noise with a class."""

    def __init__(self, seed):
        draw = np.random.Generator(np.random.PCG64(seed))
        centres = np.random.Generator(np.random.PCG64(0)).standard_normal((10, 16))
        self.labels = draw.integers(0, 10, SIZE)
        noise = draw.standard_normal((SIZE, 16))
        self.points = torch.from_numpy((centres[self.labels] + noise).astype(np.float32))

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return self.points[index], int(self.labels[index])

    def canary_record(self, code):
        draw = np.random.Generator(np.random.PCG64(code // 10))
        return torch.from_numpy(draw.standard_normal(16, dtype=np.float32)), code % 10


class Sentences:
    """Sentences of characters; canaries mention a number after three letters."""

    WORDS = ("one", "two", "ten", "red", "sun", "sea", "ice", "oak")

    def __init__(self, seed):
        draw = np.random.Generator(np.random.PCG64(seed))
        self.lines = [" ".join(draw.choice(self.WORDS, 6)) + "." for _ in range(SIZE)]

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return encoded(self.lines[index]), 0

    def canary_record(self, code):
        letters, number = code // 10**4, code % 10**4
        name = "".join("abcdefghij"[letters // 10**n % 10] for n in range(3))
        return encoded(f"the pin of {name} is {number:04}."), 0


def encoded(text):
    return torch.tensor([ALPHABET.index(one) for one in text.ljust(LENGTH, "\n")[:LENGTH]])


class Characters(nn.Module):
    """The next character from the eight before it."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(len(ALPHABET), 16)
        self.hidden = nn.Linear(CONTEXT * 16, 128)
        self.head = nn.Linear(128, len(ALPHABET))

    def forward(self, ids):
        before = functional.pad(ids, (CONTEXT, 0))[:, :-1]
        windows = self.words(before).unfold(1, CONTEXT, 1).flatten(2)
        return self.head(torch.tanh(self.hidden(windows)))


class Canaried(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.kind = context.get_hparam("kind")
        if self.kind == "classes":
            model = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 10))
        else:
            model = Characters()
        self.model = context.wrap_model(model)
        adam = torch.optim.Adam(self.model.parameters(), lr=0.005)
        self.optimizer = context.wrap_optimizer(adam)
        self.data = Clusters if self.kind == "classes" else Sentences

    def build_training_data_loader(self):
        data = pytorch.Sourced({"a": self.data(1), "b": self.data(2)})
        size = self.context.get_per_slot_batch_size()
        return pytorch.DataLoader(data, batch_size=size, shuffle=True)

    def build_validation_data_loader(self):
        return pytorch.DataLoader(self.data(3), batch_size=50)

    def losses(self, batch):
        x, y = batch
        if self.kind == "classes":
            return functional.cross_entropy(self.model(x), y, reduction="none")
        each = functional.cross_entropy(self.model(x).transpose(1, 2), x, reduction="none")
        return each.sum(1)

    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = self.losses(batch).mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss.item()}

    def evaluate_batch(self, batch):
        return {"validation_loss": self.losses(batch).mean().item()}
