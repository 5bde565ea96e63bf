"""The same trainings by others: ``python -m benchmarks.start.peers HOW TRIALS FOLDER``.

Runs in the peers' environment. Each way has two places, and trials that save once at their end.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.start.work import Work

PLACES = 2


def alone(trials: int, folder: Path) -> None:
    """Trainings in processes that are there and have imported all they need."""
    import multiprocessing

    spawn = multiprocessing.get_context("spawn")
    together = spawn.Barrier(PLACES)
    runs = trials // PLACES
    arguments = ((place * runs, runs, together) for place in range(PLACES))
    processes = [spawn.Process(target=_one_by_one, args=one) for one in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def _one_by_one(first: int, runs: int, together: Any) -> None:
    Work("warm-up", 5).train()
    together.wait()
    for number in range(first, first + runs):
        Work(number).train()


def ray_tune(trials: int, folder: Path, reuse: bool) -> None:
    """Ray Tune, with actors that take one trial after the other, or one each."""
    import ray
    from ray import tune

    class Training(tune.Trainable):  # type: ignore[misc]
        def setup(self, config: dict[str, Any]) -> None:
            import torch

            self.model = torch.nn.Linear(1, 1)

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self.setup(new_config)
            return True

        def step(self) -> dict[str, Any]:
            Work(self.trial_id).train()
            return {"loss": 0.0, "done": True}

        def save_checkpoint(self, checkpoint_dir: str) -> None:
            import torch

            torch.save(self.model.state_dict(), Path(checkpoint_dir) / "model.pt")

        def load_checkpoint(self, checkpoint: Any) -> None:
            import torch

            self.model.load_state_dict(torch.load(Path(checkpoint) / "model.pt"))

    variables = {name: os.environ[name] for name in ("WORK_SAYS", "WORK_STEPS", "PYTHONPATH")}
    ray.init(
        num_cpus=PLACES, include_dashboard=False, log_to_driver=False,
        runtime_env={"env_vars": variables},
    )  # fmt: skip
    tune.Tuner(
        Training,
        param_space={"x": tune.uniform(0.0, 1.0)},
        tune_config=tune.TuneConfig(
            num_samples=trials, max_concurrent_trials=PLACES, reuse_actors=reuse,
            metric="loss", mode="min",
        ),
        run_config=tune.RunConfig(
            storage_path=str(folder), verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=True),
        ),
    ).fit()  # fmt: skip
    ray.shutdown()


def submitit_jobs(trials: int, folder: Path) -> None:
    """One job of submitit's local executor for each trial."""
    import submitit

    executor = submitit.LocalExecutor(folder=folder / "jobs")
    executor.update_parameters(timeout_min=60)
    waiting, running = iter(range(trials)), []
    while True:
        running = [job for job in running if not job.done()]
        running += [
            executor.submit(_saved, number, folder)
            for number in itertools.islice(waiting, PLACES - len(running))
        ]
        if not running:
            return
        time.sleep(0.02)


def _saved(number: int, folder: Path) -> None:
    import torch

    Work(number).train()
    torch.save(torch.nn.Linear(1, 1).state_dict(), folder / f"{number}.pt")


def main(how: str, trials: int, folder: Path) -> None:
    """Run it; what trainings say is in $WORK_SAYS."""
    match how:
        case "alone":
            alone(trials, folder)
        case "submitit":
            submitit_jobs(trials, folder)
        case _:
            ray_tune(trials, folder, how == "ray-reuse")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
