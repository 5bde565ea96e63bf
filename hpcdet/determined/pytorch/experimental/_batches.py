"""Batch inference that goes on where it was.

Rank ``r`` of ``n`` has batches ``r``, ``r + n``, … in order. How many each has done is in a
checkpoint every ``checkpoint_interval`` batches, with the state of metric reducers.
"""

from __future__ import annotations

import abc
import contextlib
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from hpcdet import core
from hpcdet.data import rng
from hpcdet.errors import UsageError
from hpcdet.pytorch import DataLoader, MetricReducer, TorchData, to_device
from hpcdet.pytorch.gradients.division import Division
from hpcdet.pytorch.metrics.reducers import load_state, state_of
from hpcdet.pytorch.step.reducing import Reducing


def get_default_device(core_context: core.Context) -> torch.device:
    """The device that this rank computes on."""
    return core_context.session.device


class TorchBatchProcessorContext:
    """The context that a processor is given.

    Attributes:
        device: what this rank computes on.
        outputs: the folder of this rank that ``upload_path`` fills, in the trial's folder.
    """

    def __init__(self, core_context: core.Context, storage_path: str = "") -> None:
        self._core = core_context
        self.device = get_default_device(core_context)
        self.reducers = Reducing(Division(core_context.session))
        name = storage_path or f"rank_{core_context.distributed.rank}"
        self.outputs = core_context.session.place.trial.root / "outputs" / name
        self._staged = f".new-{core_context.distributed.rank}-"
        for left in self.outputs.glob(f"{self._staged}*"):  # by an attempt that was killed
            shutil.rmtree(left, ignore_errors=True)

    def get_hparams(self) -> dict[str, Any]:
        """The trial's hyperparameters."""
        return dict(self._core.hparams)

    def get_distributed_rank(self) -> int:
        return self._core.distributed.rank

    def get_distributed_size(self) -> int:
        return self._core.distributed.size

    def to_device(self, data: TorchData, warned_types: object = None) -> TorchData:
        """A batch on this rank's device."""
        return to_device(data, self.device)

    def prepare_model_for_inference(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model in ``eval`` mode, on this rank's device."""
        return model.eval().to(self.device)

    def get_tensorboard_path(self) -> Path:
        """A folder for files of TensorBoard, in the trial's folder."""
        return self._core.train.get_tensorboard_path()

    @contextlib.contextmanager
    def upload_path(self) -> Iterator[Path]:
        """A folder to write files into; at the end of the block they are moved to ``outputs``.

        A batch that is done again after a restart replaces its files.
        """
        self.outputs.mkdir(mode=0o700, parents=True, exist_ok=True)
        staged = Path(tempfile.mkdtemp(prefix=self._staged, dir=self.outputs))
        try:
            yield staged
            for path in sorted(staged.rglob("*")):
                target = self.outputs / path.relative_to(staged)
                if path.is_dir():
                    target.mkdir(mode=0o700, exist_ok=True)
                else:
                    os.replace(path, target)
        finally:
            shutil.rmtree(staged, ignore_errors=True)

    def report_metrics(self, group: str, steps_completed: int, metrics: Mapping[str, Any]) -> None:
        """Metrics of any group; rank 0's are kept: wrap a reducer for those of all ranks."""
        self._core.train.report_metrics(group, steps_completed, metrics)

    def report_task_using_checkpoint(self, checkpoint: Any) -> None:
        self._core.experimental.report_task_using_checkpoint(checkpoint)

    def report_task_using_model_version(self, model_version: Any) -> None:
        self._core.experimental.report_task_using_model_version(model_version)

    def wrap_reducer(
        self,
        reducer: MetricReducer | Callable[[list[Any]], Any],
        name: str | None = None,
        for_training: bool = True,
        for_validation: bool = True,
    ) -> Any:
        """Add a metric over all batches and ranks, reported as a validation's at the end."""
        return self.reducers.add(reducer, name, training=False, validation=True)


class TorchBatchProcessor(abc.ABC):
    """The processing of each batch."""

    @abc.abstractmethod
    def __init__(self, context: TorchBatchProcessorContext) -> None: ...

    @abc.abstractmethod
    def process_batch(self, batch: Any, batch_idx: int) -> None:
        """One batch; ``batch_idx`` counts those of this rank from 0, over all attempts."""

    def on_checkpoint_start(self) -> None:  # noqa: B027
        """Before each checkpoint: what is in memory has to be written now."""

    def on_finish(self) -> None:  # noqa: B027
        """After the last batch."""


def torch_batch_process(
    batch_processor_cls: type[TorchBatchProcessor],
    dataset: Any,
    batch_size: int | None = None,
    max_batches: int | None = None,
    checkpoint_interval: int = 5,
    dataloader_kwargs: Mapping[str, Any] | None = None,
    distributed_context: core.DistributedContext | None = None,
) -> None:
    """Give each batch of a data set with indices to a processor, on one rank.

    Args:
        batch_size: samples in a batch; 1 if neither this nor ``dataloader_kwargs`` says it.
        max_batches: of each rank; None: all.
        checkpoint_interval: batches of a rank between two checkpoints.
        dataloader_kwargs: of torch's loader: no ``shuffle``, no sampler.
        distributed_context: Determined's; not needed.

    Raises:
        UsageError: arguments that cannot be.
    """
    options, batch = _options(dataset, batch_size, checkpoint_interval, dataloader_kwargs or {})
    with core.init(distributed=distributed_context) as context:
        given = TorchBatchProcessorContext(context)
        processor = batch_processor_cls(given)
        rank, world = context.distributed.rank, context.distributed.size
        total = math.ceil(len(dataset) / batch / world)
        if max_batches is not None and 0 < max_batches < total:
            total = max_batches
        begin = _restore(context, given.reducers)
        loader = DataLoader(dataset, batch_size=batch, **options).get_data_loader(
            skip=begin, num_replicas=world, rank=rank
        )
        drawn = rng.capture_cpu()
        batches, saved = iter(loader), begin
        rng.restore_cpu(drawn)  # each attempt begins a loader, which draws a number
        for index in range(begin, total):
            found = next(batches, None)  # the last rank may have one less
            if found is not None:
                processor.process_batch(batch=found, batch_idx=index)
            done = index + 1
            context.train.advance(done)
            leaving = context.preempt.should_preempt()
            if done % checkpoint_interval == 0 or done == total or leaving:
                processor.on_checkpoint_start()
                _save(context, given.reducers, done)
                saved = done
                context.train.report_progress(done / total)
            if leaving and done < total:
                return
        if saved < total or total == 0:
            _save(context, given.reducers, total)
        metrics = given.reducers.reduced(training=False)
        if metrics:
            context.train.report_validation_metrics(total, metrics)
        processor.on_finish()


def _options(
    dataset: Any, batch_size: int | None, interval: int, asked: Mapping[str, Any]
) -> tuple[dict[str, Any], int]:
    """Arguments for the loader without the size of a batch, and that size."""
    options = dict(asked)
    strange = [name for name in ("sampler", "batch_sampler") if name in options]
    if options.pop("shuffle", False) or strange:
        _refuse(f"{strange[0] if strange else 'shuffle'} would break the order", "leave it out")
    if batch_size is not None and "batch_size" in options:
        _refuse("batch_size is given twice", "leave one out")
    if interval < 1:
        _refuse(f"checkpoint_interval is {interval}", "1 or more")
    if not hasattr(dataset, "__len__"):
        _refuse("the data set has no __len__", "give it __len__ and __getitem__")
    size = options.pop("batch_size", None) if batch_size is None else batch_size
    return options, int(size or 1)


def _refuse(what: str, hint: str) -> None:
    raise UsageError(what, where="torch_batch_process", hint=hint)


def _save(context: core.Context, reducers: Reducing, done: int) -> None:
    own = {name: state_of(one) for name, one in reducers.all().items()}
    state = {"batches": done, "ranks": context.distributed.size}
    context.checkpoint.save(state, done, private={"reducers": own})


def _restore(context: core.Context, reducers: Reducing) -> int:
    """Batches of each rank that are behind; with another number of ranks, those surely are.

    Raises:
        UsageError: the number of ranks is another, and reducers hold what the old ones saw.
    """
    state = context.checkpoint.latest()
    if state is None:
        return 0
    ranks, world = int(state["ranks"]), context.distributed.size
    if ranks != world:
        if reducers.all():
            _refuse(
                f"metrics were gathered on {ranks} ranks, and there are {world}",
                f"go on with resources.slots_per_trial: {ranks}",
            )
        return int(state["batches"]) * ranks // world
    own = context.checkpoint.latest_private() or {"reducers": {}}
    for name, reducer in reducers.all().items():
        if name in own["reducers"]:
            load_state(reducer, own["reducers"][name])
    return int(state["batches"])
