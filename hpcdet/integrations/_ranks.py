"""Telling a framework which rank it is, in the words of ``torchrun`` that all of them know."""

from __future__ import annotations

import os

from hpcdet import core
from hpcdet.errors import ConfigError

_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def announce(context: core.Context, *, also_alone: bool = False) -> None:
    """Set ``RANK``, ``WORLD_SIZE`` and the like for this process; none if it is alone.

    With them, most frameworks would look for other ranks.

    The process group exists already where there are several ranks, so the address of rank 0 is
    only there for code that looks whether it is set.
    """
    ranks = context.session.ranks
    if ranks.world == 1 and not also_alone:
        for name in _VARIABLES:
            os.environ.pop(name, None)
        return
    os.environ.update({name: ranks.variables()[name] for name in _VARIABLES})
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "0")


def one_only(context: core.Context, who: str) -> None:
    """Refuse several ranks.

    Raises:
        ConfigError: there are several, and each would train a model of its own.
    """
    world = context.session.ranks.world
    if world > 1:
        raise ConfigError(
            f"{who} trains on one rank, and there are {world}",
            where="resources.slots_per_trial",
            hint="set it to 1; PyTorchTrial, Lightning, Hugging Face, DeepSpeed train on several",
        )
