"""``DeepSpeedTrialContext``: what a trial is given, and what it gives its engines to."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]

from hpcdet import core
from hpcdet.determined.util import merge_dicts
from hpcdet.errors import ConfigError, UsageError
from hpcdet.integrations import deepspeed as ours
from hpcdet.integrations._ranks import announce
from hpcdet.pytorch.api.trial_context import TrialContext
from hpcdet.pytorch.gradients.division import Division
from hpcdet.pytorch.step.reducing import Reducing


@dataclass
class ModelParallelUnit:
    """Which share of the data a rank has, and whether it reports; data parallelism only."""

    data_parallel_rank: int
    data_parallel_world_size: int
    should_report_metrics: bool = True
    should_build_data_loader: bool = True


def make_data_parallel_mpu(dist_context: core.DistributedContext) -> ModelParallelUnit:
    """Make the unit of a rank where every rank has the whole model."""
    return ModelParallelUnit(dist_context.rank, dist_context.size)


def overwrite_deepspeed_config(
    base_ds_config: str | Mapping[str, Any], source_ds_dict: Mapping[str, Any]
) -> dict[str, Any]:
    """DeepSpeed's config, a dict or a file of JSON, with values laid over it."""
    if isinstance(base_ds_config, str):
        base_ds_config = json.loads(Path(base_ds_config).read_text())
    return merge_dicts(base_ds_config, source_ds_dict)  # type: ignore[arg-type]


class DeepSpeedTrialContext(TrialContext):
    """Made by ``init``.

    Attributes:
        models: wrapped engines, in order.
        batches, epoch, epoch_length: how far training is; ``Trainer`` sets them.
    """

    def __init__(
        self,
        core_context: core.Context,
        hparams: Mapping[str, Any] | None = None,
        exp_conf: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(core_context, exp_conf)
        if hparams is not None and not core_context.session.attached:
            core_context.hparams = dict(hparams)
        self.models: list[Any] = []
        self.division = Division(core_context.session)
        self.reducers = Reducing(self.division)
        self.batches = self.epoch_length = 0
        self.manual_accumulation = self.unchecked_data = False

    def wrap_model_engine(self, model: Any) -> Any:
        """Take what ``deepspeed.initialize`` made into checkpoints.

        Raises:
            ConfigError: its state would lie where it cannot be asked for, a pipeline's say.
        """
        ours.check(model)
        self.models.append(model)
        return model

    def set_mpu(self, mpu: ModelParallelUnit) -> None:
        """Which share of the data this rank has.

        Raises:
            ConfigError: it is not one share for each rank.
        """
        mine = (mpu.data_parallel_rank, mpu.data_parallel_world_size)
        if mine != (self.distributed.rank, self.distributed.size):
            raise ConfigError(
                f"share {mine[0]} of {mine[1]} on rank {self.distributed.rank} of "
                f"{self.distributed.size} would be parts of a model",
                where="set_mpu",
                hint="data parallelism works, with ZeRO of any stage",
            )

    def disable_auto_grad_accumulation(self) -> None:
        """``train_batch`` takes as many micro-batches as the optimizer's step needs."""
        self.manual_accumulation = True

    def disable_dataset_reproducibility_checks(self) -> None:
        """Take any loader; where it is, no checkpoint knows (``get_initial_batch``)."""
        self.unchecked_data = True

    @property
    def use_pipeline_parallel(self) -> bool:
        return False

    def get_train_micro_batch_size_per_gpu(self) -> int:
        """Samples that an engine takes at once on one rank."""
        return int(self._first().train_micro_batch_size_per_gpu())

    def get_num_micro_batches_per_slot(self) -> int:
        """Micro-batches of one rank before the optimizer steps."""
        return int(self._first().gradient_accumulation_steps())

    train_micro_batch_size_per_gpu = property(get_train_micro_batch_size_per_gpu)
    num_micro_batches_per_slot = property(get_num_micro_batches_per_slot)

    def _first(self) -> Any:
        if not self.models:
            raise UsageError(
                "no engine is wrapped yet",
                where="DeepSpeedTrialContext",
                hint="pass what deepspeed.initialize gives to context.wrap_model_engine",
            )
        return self.models[0]

    def current_train_batch(self) -> int:
        """Index of the batch under way, from 0, over all epochs."""
        return self.batches

    def current_train_epoch(self) -> int:
        return self.batches // max(1, self.epoch_length)

    def is_epoch_start(self) -> bool:
        return self.batches % max(1, self.epoch_length) == 0

    def is_epoch_end(self) -> bool:
        return (self.batches + 1) % max(1, self.epoch_length) == 0

    def set_profiler(self, *args: Any, **options: Any) -> None:
        """Not with DeepSpeed.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            "torch's profiler is not run for a DeepSpeedTrial",
            where="set_profiler",
            hint="use flops_profiler of DeepSpeed's config",
        )


@contextlib.contextmanager
def init(
    *,
    hparams: Mapping[str, Any] | None = None,
    exp_conf: Mapping[str, Any] | None = None,
    distributed: object = None,
    enable_tensorboard_logging: bool = True,
) -> Iterator[DeepSpeedTrialContext]:
    """Join the attempt this process belongs to, with the process group that DeepSpeed wants."""
    with core.init(hparams=hparams, distributed=distributed) as context:
        announce(context, also_alone=True)
        if not dist.is_initialized():
            dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
        if context.session.device.type == "cpu":
            ours.compile_nothing()
        made = DeepSpeedTrialContext(context, hparams, exp_conf)
        made.set_enable_tensorboard_logging(enable_tensorboard_logging)
        yield made
