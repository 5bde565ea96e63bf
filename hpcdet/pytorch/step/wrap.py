"""Transformations of a trial's model: recomputation, compilation, distribution over ranks."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hpcdet.core.training import Session
from hpcdet.errors import ConfigError
from hpcdet.process.console import say
from hpcdet.pytorch.gradients.reducer import GradientReducer
from hpcdet.pytorch.step import recompute

if TYPE_CHECKING:  # imported where there is a policy only
    from hpcdet.core.governance.governance_context import GovernanceContext


def wrap(
    model: nn.Module, session: Session, reducer: GradientReducer, governance: GovernanceContext
) -> nn.Module:
    """A model on this rank's device, as the config and the policy want it.

    Raises:
        ConfigError: what the config asks for does not go with this model or this machine.
    """
    wanted = session.config.optimizations
    learns = any(one.requires_grad for one in model.parameters())
    if learns and session.config.distributed.strategy == "fsdp2" and session.ranks.world == 1:
        _check_alone(session)
    if learns:
        governance.take(model)
    guard = governance.guard
    remembering = None if guard is None else guard.router.recomputing
    recompute.recompute(model, wanted.activation_checkpointing, remembering)
    if wanted.compile:
        options = wanted.compile if isinstance(wanted.compile, dict) else {}
        _compile(reducer.units(model) if learns else [model], options)
    return reducer.distribute(model) if learns else model.to(session.device)


def _check_alone(session: Session) -> None:
    if session.config.resources.slots_per_trial == 1:
        raise ConfigError(
            "fsdp2 shards a model over ranks, and there is one",
            where="distributed.strategy",
            hint="use ddp, or more resources.slots_per_trial",
        )
    say("one rank is tried alone: the model is not sharded here")


def _compile(units: list[nn.Module], options: dict[str, Any]) -> None:
    """Compile forward, in place: names of parameters stay as they are.

    What gathers parameters stays outside: of a sharded model, each unit is compiled by itself.
    Each shape has code of its own, unless the options say otherwise: code for changing shapes is
    made once they have changed, so that its bits would depend on where an attempt began.
    """
    options = {"dynamic": False, **options}
    if options.get("backend", "inductor") == "inductor":
        _need_compiler()
    for module in units:
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
