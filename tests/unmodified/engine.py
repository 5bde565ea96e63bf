"""A DeepSpeedTrial with two engines, ZeRO and gradients of two batches for a step."""

import deepspeed
import determined as det
import torch
from determined import pytorch
from determined.pytorch import deepspeed as det_ds


class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        x = torch.rand(4)
        return x, x.sum().view(1) * index


class EngineTrial(det_ds.DeepSpeedTrial):
    def __init__(self, context: det_ds.DeepSpeedTrialContext, hparams: dict) -> None:
        self.context = context
        self.engines = []
        adam = {"type": "Adam", "params": {"lr": hparams["lr"], "torch_adam": True}}
        for width in (4, 8):
            model = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Linear(width, 1))
            config = det_ds.overwrite_deepspeed_config(
                {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2},
                {"optimizer": adam, "zero_optimization": {"stage": 1}},
            )
            engine, *_ = deepspeed.initialize(
                model=model, model_parameters=model.parameters(), config=config
            )
            self.engines.append(context.wrap_model_engine(engine))
        assert context.get_num_micro_batches_per_slot() == 2

    def build_training_data_loader(self):
        size = self.context.get_train_micro_batch_size_per_gpu()
        return pytorch.DataLoader(Points(), batch_size=size, shuffle=True)

    def build_validation_data_loader(self):
        return pytorch.DataLoader(Points(), batch_size=2)

    def train_batch(self, dataloader_iter, epoch_idx, batch_idx):
        x, y = self.context.to_device(next(dataloader_iter))
        losses = {}
        for number, engine in enumerate(self.engines):
            loss = ((engine(x) - y) ** 2).mean()
            engine.backward(loss)
            engine.step()
            losses[f"loss_{number}"] = loss
        return losses

    def evaluate_batch(self, dataloader_iter, batch_idx):
        x, y = self.context.to_device(next(dataloader_iter))
        return {"validation_loss": ((self.engines[0](x) - y) ** 2).mean()}


if __name__ == "__main__":
    info = det.get_cluster_info()
    with det_ds.init() as context:
        trainer = det_ds.Trainer(EngineTrial(context, info.trial.hparams), context)
        trainer.fit(
            max_length=pytorch.Batch(60),
            checkpoint_period=pytorch.Batch(10),
            latest_checkpoint=info.latest_checkpoint,
        )
