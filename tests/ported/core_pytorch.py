"""A loop of one's own in PyTorch over the Core API, with DDP and torch's own loaders."""

import pathlib

import data
import torch
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import hpcdet.determined as det


def load_state(checkpoint_directory, trial_id):
    folder = pathlib.Path(checkpoint_directory)
    with folder.joinpath("checkpoint.pt").open("rb") as f:
        model = torch.load(f)
    epochs_completed, of_trial = map(int, folder.joinpath("state").read_text().split(","))
    return model, epochs_completed if of_trial == trial_id else 0


def main(core_context, info):
    hparams = info.trial.hparams
    distributed = core_context.distributed
    torch.manual_seed(1)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    epochs_completed = 0
    if info.latest_checkpoint is not None:
        with core_context.checkpoint.restore_path(info.latest_checkpoint) as path:
            state, epochs_completed = load_state(path, info.trial.trial_id)
            network.load_state_dict(state)
    model = DistributedDataParallel(network)
    dataset = data.get_dataset(True)
    sampler = DistributedSampler(
        dataset, num_replicas=distributed.size, rank=distributed.rank, shuffle=True
    )
    loader = DataLoader(dataset, sampler=sampler, batch_size=32)
    optimizer = optim.SGD(model.parameters(), lr=hparams["learning_rate"])
    for epoch_idx in range(epochs_completed, 3):
        sampler.set_epoch(epoch_idx)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        epochs_completed = epoch_idx + 1
        steps_completed = epochs_completed * len(loader)
        everyone = distributed.gather(float(loss))
        if distributed.rank == 0:
            mean = sum(everyone) / len(everyone)
            core_context.train.report_validation_metrics(
                steps_completed=steps_completed,
                metrics={"test_loss": mean, "epochs": epochs_completed},
            )
            metadata = {"steps_completed": steps_completed}
            with core_context.checkpoint.store_path(metadata) as (path, _storage_id):
                torch.save(network.state_dict(), path / "checkpoint.pt")
                path.joinpath("state").write_text(f"{epochs_completed},{info.trial.trial_id}")
        if core_context.preempt.should_preempt():
            return


if __name__ == "__main__":
    given = det.core.DistributedContext.from_torch_distributed()
    with det.core.init(distributed=given) as core_context:
        main(core_context, det.get_cluster_info())
