"""Transformations of a trial's model: recomputation, compilation, distribution over ranks."""

from __future__ import annotations

import os
import shutil
from typing import Any

import torch
from torch import nn

from hpcdet.errors import ConfigError
from hpcdet.pytorch.gradients import fsdp2
from hpcdet.pytorch.gradients.compression import Compression
from hpcdet.pytorch.gradients.ddp import Parallel
from hpcdet.pytorch.step import recompute
from hpcdet.store.config.resolved_config import Fsdp2
from hpcdet.train.attempt.session import Session
from hpcdet.train.process.console import say


def wrap(model: nn.Module, session: Session) -> nn.Module:
    """A model on this rank's device, as the config wants it.

    Raises:
        ConfigError: what the config asks for does not go with this model or this machine.
    """
    wanted, how = session.config.optimizations, session.config.distributed
    learns = any(one.requires_grad for one in model.parameters())
    shards = how.strategy == "fsdp2" and learns and _can_shard(session)
    recompute.recompute(model, wanted.activation_checkpointing)
    if wanted.compile:
        options = wanted.compile if isinstance(wanted.compile, dict) else {}
        _compile(model, options, how.fsdp2 if shards else None)
    if shards:
        return fsdp2.shard(model, how.fsdp2, session.device)
    model = model.to(session.device)
    if session.ranks.world == 1 or session.virtual is not None or not learns:
        return model
    devices = [session.device] if session.device.type == "cuda" else None
    parallel = Parallel(model, session.generators, device_ids=devices)
    parallel.compression = Compression(parallel, wanted)
    return parallel


def _can_shard(session: Session) -> bool:
    if session.ranks.world > 1:
        return True
    if session.config.resources.slots_per_trial == 1:
        raise ConfigError(
            "fsdp2 shards a model over ranks, and there is one",
            where="distributed.strategy",
            hint="use ddp, or more resources.slots_per_trial",
        )
    say("one rank is tried alone: the model is not sharded here")
    return False


def _compile(model: nn.Module, options: dict[str, Any], sharded: Fsdp2 | None) -> None:
    """Compile forward, in place: names of parameters stay as they are.

    What gathers parameters stays outside: of a sharded model, each unit is compiled by itself.
    Each shape has code of its own, unless the options say otherwise: code for changing shapes is
    made once they have changed, so that its bits would depend on where an attempt began.
    """
    options = {"dynamic": False, **options}
    if options.get("backend", "inductor") == "inductor":
        _need_compiler()
    for module in (sharded and fsdp2.find_units(model, sharded)) or [model]:
        try:
            module.forward = torch.compile(module.forward, **options)
        except RuntimeError as error:  # a mode or a backend that there is not
            why = " ".join(str(error).split())
            raise ConfigError(why, where="optimizations.compile") from error


def _need_compiler() -> None:
    names = [os.environ.get("CXX", "g++"), "clang++", "c++"]
    if not any(shutil.which(name) for name in names):
        raise ConfigError(
            "torch.compile needs a C++ compiler, and this node has none",
            where="optimizations.compile",
            hint="load a module with gcc in the site's setup, or set CXX",
        )
