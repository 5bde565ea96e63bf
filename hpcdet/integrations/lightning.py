"""Lightning in an experiment: its Trainer, and Fabric.

    with core.init() as context:
        trainer = L.Trainer(**lightning.arguments(context, val_check_interval=50))
        data = lightning.Loader(context, digits, batch=64)
        lightning.fit(context, trainer, MyModule(), data, validation_loader)

The trainer's whole checkpoint (model, optimizers, schedules, loops, callbacks, precision) is in
hpcdet's, as a tree and with random numbers, which Lightning leaves out. What is logged goes to
the journal. With Fabric the loop is yours: ``fabric`` makes one for this rank, and
``context.checkpoint`` saves ``plain`` state, which ``put_back`` loads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import lightning
import torch
from lightning.fabric.plugins import ClusterEnvironment
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import DDPStrategy

from hpcdet import core
from hpcdet.core import warm_start
from hpcdet.errors import UsageError
from hpcdet.integrations._loader import Loader
from hpcdet.integrations._ranks import announce
from hpcdet.integrations._steps import StepCounter
from hpcdet.process import signals

__all__ = [
    "Callback",
    "Environment",
    "Journal",
    "Loader",
    "Strategy",
    "arguments",
    "fabric",
    "fit",
    "plain",
    "put_back",
]

State = dict[str, Any]
T = TypeVar("T")

_OURS = "checkpoint of hpcdet"
_SCHEDULES = (torch.optim.lr_scheduler.LRScheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)


def arguments(context: core.Context, **own: Any) -> State:
    """Arguments of ``Trainer`` for this rank: ranks, device, length, journal, checkpoints.

    Args:
        own: arguments of ``Trainer``, which count more; ``callbacks`` and ``plugins`` are added.
    """
    callback = Callback(context)
    several = {"strategy": Strategy(context)} if context.distributed.size > 1 else {}
    return {
        **_ranks(context),
        **several,
        "max_epochs": -1,
        "logger": callback.journal,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "use_distributed_sampler": False,
        **own,
        "callbacks": [*own.get("callbacks", []), callback],
        "plugins": [*own.get("plugins", []), Environment(context), callback.storage],
    }


def fabric(context: core.Context, **own: Any) -> lightning.Fabric:
    """A launched ``Fabric`` for this rank; ``own``: its arguments, which count more."""
    plugins = [*own.pop("plugins", []), Environment(context)]
    made = lightning.Fabric(**_ranks(context) | own, plugins=plugins)
    made.launch()
    return made


def plain(**objects: Any) -> State:
    """The state of modules, optimizers and the like, for ``context.checkpoint.save``."""
    return {
        name: one.state_dict() if hasattr(one, "state_dict") else one
        for name, one in objects.items()
    }


def put_back(context: core.Context, state: Mapping[str, Any], **objects: Any) -> None:
    """Load what ``plain`` has made of modules, optimizers and the like, from ``latest``'s state.

    Of another trial's state optimizers keep the options that they have, and torch's schedules are
    stepped as often as its were.
    """
    inherited = context.checkpoint.inherited
    schedules = []
    for name, one in objects.items():
        if inherited and isinstance(one, torch.optim.Optimizer):
            warm_start.load(one, state[name])
        elif inherited and isinstance(one, _SCHEDULES):
            schedules.append((one, state[name]))
        else:
            one.load_state_dict(state[name])
    warm_start.catch_up(schedules)


def fit(
    context: core.Context,
    trainer: lightning.Trainer,
    module: lightning.LightningModule,
    train: Any,
    validation: Any = None,
) -> None:
    """``trainer.fit``, going on from the newest checkpoint.

    Args:
        trainer: made with ``arguments``.
        train: a ``Loader``; another one is begun anew where its epoch was interrupted.

    Raises:
        SystemExit: with 0, where the attempt was told to leave and has saved.
        UsageError: the trainer was not made with ``arguments``.
    """
    callback = next((one for one in trainer.callbacks if isinstance(one, Callback)), None)
    if callback is None:
        raise UsageError(
            "the trainer is not connected to this attempt",
            where="lightning.fit",
            hint="make it by Trainer(**lightning.arguments(context, ...))",
        )
    resuming = callback.restore(train if isinstance(train, Loader) else None)
    if not callback.over:
        trainer.fit(module, train, validation, ckpt_path=_OURS if resuming else None)


def _ranks(context: core.Context) -> State:
    announce(context)
    spread = context.distributed
    return {
        "accelerator": "gpu" if context.session.device.type == "cuda" else "cpu",
        "devices": spread.local_size,
        "num_nodes": spread.cross_size,
        "strategy": "ddp" if spread.size > 1 else "auto",
    }


class Strategy(DDPStrategy):
    """Lightning's DDP, whose ranks tell each other values as hpcdet's do: nothing is pickled."""

    def __init__(self, context: core.Context, **own: Any) -> None:
        """``own``: arguments of ``DDPStrategy``."""
        super().__init__(**own)
        self._context = context

    def broadcast(self, obj: T, src: int = 0) -> T:
        peers = self._context.session.peers
        if src == 0:
            return peers.broadcast(obj, "Lightning")
        return peers.allgather(obj if peers.ranks.rank == src else None, "Lightning")[src]  # type: ignore[return-value]


class Environment(ClusterEnvironment):
    """Which rank this is: hpcdet has started all of them, and they have met."""

    def __init__(self, context: core.Context) -> None:
        self._ranks = context.session.ranks

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        return "127.0.0.1"

    @property
    def main_port(self) -> int:
        return 0

    @staticmethod
    def detect() -> bool:
        return False

    def world_size(self) -> int:
        return self._ranks.world

    def set_world_size(self, size: int) -> None:
        """Lightning's; the ranks are what they are."""

    def global_rank(self) -> int:
        return self._ranks.rank

    def set_global_rank(self, rank: int) -> None:
        """Lightning's; the ranks are what they are."""

    def local_rank(self) -> int:
        return self._ranks.local

    def node_rank(self) -> int:
        return self._ranks.node


class Journal(Logger):
    """Metrics that a module logs, in hpcdet's journal."""

    def __init__(self, context: core.Context) -> None:
        super().__init__()
        self._context = context
        self.trainer: lightning.Trainer | None = None

    @property
    def name(self) -> str:
        return "hpcdet"

    @property
    def version(self) -> str:
        return str(self._context.session.place.attempt.number)

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """Hpcdet knows them."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        values = {name: value for name, value in metrics.items() if name != "epoch"}
        if not values or self.trainer is None:
            return
        train = self._context.train
        batches = _progress(self.trainer).total.processed
        if self.trainer.validating:
            train.report_validation_metrics(batches, values)
        else:
            train.report_training_metrics(batches, values)


class Storage(TorchCheckpointIO):
    """Gives Lightning the state from hpcdet's checkpoint; other paths are files as ever."""

    def __init__(self) -> None:
        super().__init__()
        self.state: State | None = None

    def load_checkpoint(self, path: Any, *given: Any, **options: Any) -> State:
        if str(path) == _OURS and self.state is not None:
            state, self.state = self.state, None
            return state
        loaded: State = super().load_checkpoint(path, *given, **options)
        return loaded


class Callback(lightning.Callback):
    """Preemption, checkpoints, length. ``arguments`` adds it, with its journal and storage."""

    def __init__(self, context: core.Context) -> None:
        self.journal = Journal(context)
        self.storage = Storage()
        self._steps = StepCounter(context)
        self._loader: Loader | None = None
        self._over = False

    @property
    def over(self) -> bool:
        """Nothing is left to train."""
        return self._steps.reached

    def restore(self, loader: Loader | None) -> bool:
        """Take up the newest checkpoint; False at the beginning."""
        self._loader = loader
        state = self._steps.restore()
        if state is not None:
            _count_as_begun(state["loops"]["fit_loop"])
            if self._steps.inherited:  # its options would replace those of this trial's code
                state = {**state, "optimizer_states": [], "lr_schedulers": []}
            self.storage.state = state
        return state is not None

    # -- Lightning's hooks --------------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.journal.trainer = trainer

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        signals.install()  # Lightning has put a handler of its own over it
        if self._steps.state is not None:  # its stage is known by now
            _progress(trainer).total.ready -= 1
        if self._steps.inherited:
            _inherit(trainer, self._steps.state)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if self._loader is not None:
            self._loader.position.set_epoch(trainer.current_epoch)

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx % trainer.accumulate_grad_batches == 0:  # else gradients wait unsaved
            self._steps.begin(lambda: self._state(trainer, counted=True))

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        progress = _progress(trainer)
        batches = progress.total.processed
        each = self._loader.batch if self._loader is not None else 0
        epochs = trainer.current_epoch + int(progress.is_last_batch)
        self._over = self._steps.done(batches, records=batches * each, epochs=epochs)
        self._steps.validating()  # its loader is made before any hook of it
        if self._over:
            trainer.should_stop = True
            if not trainer.enable_validation:
                self._save(trainer)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._steps.validated()
        if self._over and not trainer.sanity_checking:
            self._save(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._save(trainer)

    # -- the state ----------------------------------------------------------------------------

    def _save(self, trainer: Any) -> None:
        """At the end, but within the epoch: it may go on, should the length grow."""
        self._steps.save(lambda: self._state(trainer, counted=False))

    def _state(self, trainer: Any, *, counted: bool) -> State:
        """Lightning's checkpoint between two batches.

        Args:
            counted: the batch before has gone into all numbers, and the next one is begun.
        """
        progress = _progress(trainer)
        if self._loader is not None:
            self._loader.position.set(trainer.current_epoch, progress.current.processed)
        state: State = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        fitting = state["loops"]["fit_loop"]
        for counts in _counts(fitting):
            counts["ready"] = counts["completed"] = counts["processed"]
        if not counted:
            fitting["epoch_loop.state_dict"]["_batches_that_stepped"] += 1
        return {**state, "loops": {"fit_loop": fitting}}


def _inherit(trainer: Any, state: State) -> None:
    """Give optimizers and schedules another trial's state under the options that they have."""
    pairs = zip(trainer.optimizers, state["optimizer_states"], strict=True)
    merged = [
        {**saved, "param_groups": warm_start.options(own, saved["param_groups"])}
        for own, saved in pairs
    ]
    trainer.strategy.load_optimizer_state_dict({"optimizer_states": merged})
    schedulers = (one.scheduler for one in trainer.lr_scheduler_configs)
    warm_start.catch_up(zip(schedulers, state["lr_schedulers"], strict=True))


def _progress(trainer: Any) -> Any:
    return trainer.fit_loop.epoch_loop.batch_progress


def _counts(fitting: State) -> list[dict[str, int]]:
    progress = fitting["epoch_loop.batch_progress"]
    return [progress["total"], progress["current"]]


def _count_as_begun(fitting: State) -> None:
    """Have Lightning see a state that was saved in a batch.

    Of one that was saved after a batch it thinks that a validation may be owed.
    """
    total, _ = _counts(fitting)
    total["ready"] += 1
    fitting["epoch_loop.state_dict"]["_batches_that_stepped"] -= 1  # which it adds by itself
