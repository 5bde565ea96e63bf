"""What the rest of the PyTorch API offers, as trials written for Determined use it."""

import torch
from torch import nn
from torch.optim import lr_scheduler

from hpcdet import pytorch

BATCH = 4


class Ones(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        return {"x": torch.ones(1), "y": torch.ones(1)}


class LabelSum(pytorch.MetricReducer):
    def __init__(self):
        self.reset()

    def reset(self):
        self.sum = 0

    def update(self, labels):
        self.sum += float(labels.sum())

    def per_slot_reduce(self):
        return self.sum

    def cross_slot_reduce(self, per_slot_metrics):
        return sum(per_slot_metrics)


def extremes(updates):
    return {"least": min(updates), "most": max(updates)}


class Counter(pytorch.PyTorchCallback):
    """Counts its hooks; its state is all it has."""

    def __init__(self):
        self.calls = {}
        self.metrics = []

    def _count(self, name):
        self.calls[name] = self.calls.get(name, 0) + 1

    def on_trial_startup(self, first_batch_idx, checkpoint_uuid):
        self._count("startup")

    def on_trial_shutdown(self):
        self._count("shutdown")

    def on_training_start(self):
        self._count("start")

    def on_training_epoch_start(self, epoch_idx):
        self._count("epoch_start")

    def on_training_epoch_end(self, epoch_idx):
        self._count("epoch_end")

    def on_training_workload_end(self, avg_metrics, batch_metrics):
        self._count("workload_end")

    def on_validation_start(self):
        assert not torch.is_grad_enabled()
        self._count("validation_start")

    def on_validation_epoch_start(self):
        self._count("validation_epoch_start")

    def on_validation_epoch_end(self, outputs):
        assert {"val_loss", "many"} <= outputs[0].keys()

    def on_validation_end(self, metrics):
        assert not torch.is_grad_enabled()
        self.metrics.append(dict(metrics))

    def on_checkpoint_save_start(self, checkpoint):
        checkpoint["note"] = "mine"

    def on_checkpoint_load_start(self, checkpoint):
        assert checkpoint["note"] == "mine"
        self.loaded = True

    def on_checkpoint_write_end(self, checkpoint_dir):
        with open(checkpoint_dir + "/note", "w") as f:
            f.write("mine")
        self._count("written")

    def on_checkpoint_upload_end(self, uuid):
        self.uuid = uuid

    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state_dict):
        self.calls = state_dict["calls"]


class OldFashioned(pytorch.PyTorchCallback):
    """With a hook as it was before it had an argument, and one under its old name."""

    def __init__(self):
        self.epochs = 0
        self.folders = []

    def on_training_epoch_start(self):
        self.epochs += 1

    def on_checkpoint_end(self, checkpoint_dir):
        self.folders.append(checkpoint_dir)


class Late(pytorch.PyTorchCallback):
    """Has something to say at the end of a validation."""

    def __init__(self, model, reducer):
        self.model, self.reducer = model, reducer

    def on_validation_epoch_end(self, outputs):
        assert not self.model.training
        self.reducer.update(len(outputs))


class StepOnPlateau(pytorch.PyTorchCallback):
    def __init__(self, scheduler):
        self.scheduler = scheduler

    def on_validation_end(self, metrics):
        self.scheduler.step(metrics["val_loss"])


class EverythingTrial(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        context.experimental.use_amp()
        context.experimental.disable_auto_to_device()
        self.a = context.wrap_model(nn.Linear(1, 1, bias=False))
        self.b = context.wrap_model(nn.Linear(1, 1, bias=False))
        for model in (self.a, self.b):
            nn.init.zeros_(model.weight)
        self.opt_a = context.wrap_optimizer(
            torch.optim.SGD(self.a.parameters(), 0.1), backward_passes_per_step=1
        )
        self.opt_b = context.wrap_optimizer(
            torch.optim.SGD(self.b.parameters(), 0.1), average_aggregated_gradients=False
        )
        self.rate = context.wrap_lr_scheduler(
            lr_scheduler.StepLR(self.opt_a, 1, gamma=0.5),
            step_mode=pytorch.LRScheduler.StepMode.STEP_EVERY_EPOCH,
        )
        self.plateau = context.wrap_lr_scheduler(
            lr_scheduler.ReduceLROnPlateau(self.opt_b, patience=0),
            step_mode=pytorch.LRScheduler.StepMode.MANUAL_STEP,
        )
        self.label_sum = context.wrap_reducer(LabelSum(), name="label_sum")
        self.extremes = context.wrap_reducer(extremes, for_training=False)
        self.late = context.wrap_reducer(sum, name="late", for_training=False)
        self.counter, self.old = Counter(), OldFashioned()
        self.models, self.optimizers = context.configure_apex_amp(
            [self.a, self.b], [self.opt_a, self.opt_b], enabled=False
        )
        self.starts, self.ends = [], []

    def build_callbacks(self):
        return {
            "counter": self.counter,
            "old": self.old,
            "plateau": StepOnPlateau(self.plateau),
            "late": Late(self.a, self.late),
        }

    def build_training_data_loader(self):
        self.context.set_profiler(
            activities=[torch.profiler.ProfilerActivity.CPU],
            schedule=torch.profiler.schedule(wait=1, warmup=0, active=1, repeat=1),
        )
        return pytorch.DataLoader(Ones(), self.context.get_per_slot_batch_size(), shuffle=True)

    def build_validation_data_loader(self):
        return pytorch.DataLoader(Ones(), self.context.get_per_slot_batch_size())

    def get_batch_length(self, batch):
        return len(batch["x"])

    def evaluation_reducer(self):
        return {"val_loss": pytorch.Reducer.AVG, "many": pytorch.Reducer.SUM}

    def train_batch(self, batch, epoch_idx, batch_idx):
        context = self.context
        assert (context.current_train_batch(), context.current_train_epoch()) == (
            batch_idx,
            epoch_idx,
        )
        if context.is_epoch_start():
            self.starts.append(batch_idx)
        if context.is_epoch_end():
            self.ends.append(batch_idx)
        batch = context.to_device(batch)
        self.label_sum.update(batch["y"])
        loss_a = nn.functional.mse_loss(self.a(batch["x"]), batch["y"])
        loss_b = nn.functional.mse_loss(self.b(batch["x"]), batch["y"])
        context.backward(loss_a, retain_graph=True)
        context.backward(loss_b)
        context.step_optimizer(
            self.opt_a, clip_grads=lambda params: nn.utils.clip_grad_value_(params, 100.0)
        )
        context.step_optimizer(self.opt_b)
        return {"loss": loss_a, "output": self.a(batch["x"])}

    def evaluate_batch(self, batch):
        batch = self.context.to_device(batch)
        output = self.a(batch["x"])
        self.label_sum.update(batch["y"])
        self.extremes.update(float(output[0]))
        return {"val_loss": nn.functional.mse_loss(output, batch["y"]), "many": batch["y"]}
