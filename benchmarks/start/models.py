"""What is trained until the first step: by hand, and by a trial of ours."""

from __future__ import annotations

ONE = {"OMP_NUM_THREADS": "1"}
SAY = """
import json, os, sys, time
def say():
    told = {"cpu_s": time.process_time(), "modules": len(sys.modules)}
    name = os.environ["START_SAYS"] + os.environ.get("HPCDET_TRIAL", "")
    open(name, "w").write(json.dumps(told))
"""
BY_HAND = f"""{SAY}
import torch
from torch import nn
meeting = "file://" + os.environ["START_SAYS"] + ".store"
torch.distributed.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
model = nn.parallel.DistributedDataParallel(nn.Linear(1, 1))
optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.TensorDataset(torch.rand(64, 1))
for [x] in torch.utils.data.DataLoader(data, 8, shuffle=True):
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    say()
    break
torch.distributed.destroy_process_group()
"""
TRIAL = f"""{SAY}
import torch
from torch import nn
from hpcdet import pytorch

class StartTrial(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(nn.Linear(1, 1))
        self.optimizer = context.wrap_optimizer(torch.optim.AdamW(self.model.parameters()))

    def build_training_data_loader(self):
        data = torch.utils.data.TensorDataset(torch.rand(64, 1))
        return pytorch.DataLoader(data, self.context.get_per_slot_batch_size(), shuffle=True)

    def build_validation_data_loader(self):
        return self.build_training_data_loader()

    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = self.model(batch[0]).square().mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        say()
        return {{"loss": loss}}

    def evaluate_batch(self, batch, batch_idx):
        return {{"validation_loss": self.model(batch[0]).square().mean()}}
"""
