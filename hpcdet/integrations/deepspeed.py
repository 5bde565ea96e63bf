"""DeepSpeed's engine in an experiment; the loop is yours.

    with core.init() as context:
        engine, *_ = deepspeed.initialize(context, model=model, optimizer=adam, config={...})
        known = deepspeed.restore(context, engine) or {"step": 0}
        ...
        deepspeed.save(context, engine, step, {"step": step})

DeepSpeed writes files of pickled objects. Here it is given a place in memory for them: what it
hands over becomes trees in hpcdet's checkpoints, with a digest, and is handed back when it asks
for its files. What it only writes for its own tools is left out.
"""

from __future__ import annotations

import contextlib
import enum
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]

if not torch.cuda.is_available():  # it would look for other kinds of device
    os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointEngine
from deepspeed.runtime.fp16.loss_scaler import LossScalerBase

from hpcdet import core
from hpcdet.core import warm_start
from hpcdet.errors import ConfigError, IntegrityError, UsageError
from hpcdet.integrations._ranks import announce

State = dict[str, Any]

_TAG = "state"
_OF_ALL = "mp_rank_"
"""How names of files begin that are equal on all ranks."""
_FOR_TOOLS = frozenset(
    {
        "buffer_names",
        "ds_config",
        "frozen_param_fragments",
        "frozen_param_shapes",
        "param_shapes",
        "param_slice_mappings",
        "shared_params",
    }
)


def initialize(context: core.Context, **own: Any) -> Any:
    """``deepspeed.initialize`` for this rank; ``own``: its arguments.

    Raises:
        ConfigError: state would lie where it cannot be asked for: a pipeline's stages, parts of
            layers, experts, tensors on local disks.
    """
    announce(context, also_alone=True)
    if not dist.is_initialized():  # it wants a process group for one rank as well
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    if context.session.device.type == "cpu":
        compile_nothing()
    made = deepspeed.initialize(**{"dist_init_required": False, **own})
    check(made[0])
    return made


def check(engine: Any) -> None:
    """See that an engine's state can be asked for.

    Raises:
        ConfigError: it lies elsewhere: in a pipeline's stages, parts of layers, experts, tensors
            on local disks.
    """
    strange = {
        "pipeline parallelism": isinstance(engine, deepspeed.PipelineEngine),
        "tensor parallelism": engine.mp_world_size > 1,
        "a mixture of experts": engine.has_moe_layers,
        "optimizer state on local disks": bool(engine.zero_nvme_offload_optimizer()),
    }
    for what, there in strange.items():
        if there:
            raise ConfigError(
                f"DeepSpeed's {what} cannot be saved by hpcdet",
                where="deepspeed.initialize",
                hint="data parallelism can, with ZeRO of any stage",
            )


def save(
    context: core.Context, engine: Any, step: int, known: Mapping[str, Any] | None = None
) -> str:
    """Make a checkpoint after so many steps; returns its name. All ranks together.

    Args:
        known: plain values of your own, equal on all ranks, for ``restore``.

    Raises:
        UsageError: gradients wait for more batches, which DeepSpeed does not save.
    """
    state, own = capture(context, engine)
    return context.checkpoint.save({**state, "known": dict(known or {})}, step, private=own)


def capture(context: core.Context, engine: Any) -> tuple[State, State]:
    """An engine's state: what is equal on all ranks, and what this rank has. All ranks together.

    Raises:
        UsageError: gradients wait for more batches, which DeepSpeed does not save.
    """
    if engine.micro_steps % engine.gradient_accumulation_steps():
        raise UsageError(
            "gradients are still being accumulated",
            where="deepspeed.save",
            hint="save after the batch with which the optimizer steps",
        )
    held: State = {}
    with tempfile.TemporaryDirectory(prefix="hpcdet-") as folder, _in_memory(engine, held):
        engine.save_checkpoint(folder, tag=_TAG, save_latest=False)
    shared = {name: one for name, one in held.items() if name.startswith(_OF_ALL)}
    own = {name: one for name, one in held.items() if name not in shared}
    state = {
        "files": shared,
        "zero_stage": int(engine.zero_optimization_stage()),
        "ranks": context.distributed.size if engine.zero_optimization() else 0,
    }
    return state, own


def restore(context: core.Context, engine: Any) -> State | None:
    """Put back the newest checkpoint; what was ``known`` then, or None at the beginning.

    Random numbers are put back with it. Of another trial's, from which this one begins, the
    optimizer keeps the options that it has, and its schedule is brought to where that one's was.

    Raises:
        ConfigError: ZeRO had another stage or other ranks when it was saved.
        IntegrityError: it is of another model.
    """
    state = context.checkpoint.latest()
    if state is None:
        return None
    put_back(context, engine, state, context.checkpoint.latest_private() or {})
    return dict(state["known"])


def put_back(
    context: core.Context, engine: Any, state: Mapping[str, Any], own: Mapping[str, Any]
) -> None:
    """Give an engine what ``capture`` took of it; raises as ``restore``."""
    stage, ranks = int(engine.zero_optimization_stage()), context.distributed.size
    if state["zero_stage"] != stage:
        raise ConfigError(
            f"the checkpoint was saved with ZeRO {state['zero_stage']}, and this is {stage}",
            where="zero_optimization.stage",
            hint="continue with the stage that the trial began with",
        )
    if state["ranks"] not in (0, ranks):
        raise ConfigError(
            f"ZeRO's state lies in {state['ranks']} parts, and there are {ranks} ranks",
            where="resources.slots_per_trial",
            hint="continue with as many slots as before; without ZeRO any number works",
        )
    held = {**state["files"], **own}
    with tempfile.TemporaryDirectory(prefix="hpcdet-") as folder, _in_memory(engine, held):
        (Path(folder) / _TAG).mkdir()
        for name in held:  # it looks for the files before it asks for what they hold
            (Path(folder) / _TAG / name).touch()
        try:
            if context.checkpoint.inherited:
                _load_inherited(engine, folder)
            else:
                engine.load_checkpoint(folder, tag=_TAG)
        except (AttributeError, KeyError, RuntimeError, ValueError) as error:
            raise IntegrityError(
                f"the state does not fit this engine: {' '.join(str(error).split())}",
                where="checkpoint",
                hint="have the model, the optimizer or DeepSpeed's config changed?",
            ) from error


def _load_inherited(engine: Any, folder: str) -> None:
    """Load another trial's state under the options that this trial's optimizer has."""
    optimizer, schedule = engine.basic_optimizer, engine.lr_scheduler
    own = warm_start.asked(optimizer) if optimizer is not None else []
    _, left = engine.load_checkpoint(folder, tag=_TAG, load_lr_scheduler_states=False)
    for group, options in zip(optimizer.param_groups if own else (), own, strict=True):
        group.update(options)
    if schedule is None or left.get("lr_scheduler") is None:
        return
    warm_start.catch_up([(schedule, left["lr_scheduler"])])
    if not isinstance(schedule, torch.optim.lr_scheduler.LRScheduler):
        # DeepSpeed's own, which save the count of steps alone, from which the rate follows
        schedule.step(left["lr_scheduler"]["last_batch_iteration"])


def compile_nothing() -> None:
    """Leave out what DeepSpeed would compile when it starts on a CPU, which takes minutes.

    It is a sum over shared memory, which inference alone makes use of, and whose segments all
    trials of a user on a node would share.
    """
    deepspeed.ops.__compatible_ops__ = {}


@contextlib.contextmanager
def _in_memory(engine: Any, held: State) -> Iterator[None]:
    """While the block lasts, what DeepSpeed takes for its files is ``held``.

    Each rank has what all of them have: hpcdet's ranks write it together.
    """
    before = engine.checkpoint_engine, engine.save_non_zero_checkpoint
    engine.checkpoint_engine, engine.save_non_zero_checkpoint = _Files(engine, held), True
    try:
        yield
    finally:
        engine.checkpoint_engine, engine.save_non_zero_checkpoint = before


class _Files(CheckpointEngine):
    """DeepSpeed's interface to files: here trees in memory, by their names."""

    def __init__(self, engine: Any, held: State) -> None:
        super().__init__()
        self.name = "hpcdet"
        self._engine = engine
        self._held = held

    def create(self, info: Any) -> None:
        """Nothing is begun."""

    def save(self, state_dict: Any, path: str) -> None:
        state = {name: one for name, one in state_dict.items() if name not in _FOR_TOOLS}
        if "optimizer_state_dict" in state:  # ZeRO's
            of_zero = state["optimizer_state_dict"].items()
            state["optimizer_state_dict"] = {k: v for k, v in of_zero if k not in _FOR_TOOLS}
        self._held[Path(path).name] = _plain(state)

    def load(self, path: str, map_location: Any = None) -> Any:
        state: State = self._held[Path(path).name]
        of_zero = state.get("optimizer_state_dict", {})
        if "loss_scaler" not in of_zero:
            return dict(state)
        scaler = self._engine.optimizer.loss_scaler  # an object, which gets the other's numbers
        vars(scaler).update(of_zero["loss_scaler"])
        return {**state, "optimizer_state_dict": {**of_zero, "loss_scaler": scaler}}

    def commit(self, info: Any) -> bool:
        return True


def _plain(value: Any) -> Any:
    """The state in a value of DeepSpeed's, as a checkpoint can hold it."""
    if isinstance(value, LossScalerBase):
        value = vars(value)
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, tuple):
        return tuple(_plain(one) for one in value)
    return value.value if isinstance(value, enum.Enum) else value
