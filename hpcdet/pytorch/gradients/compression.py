"""How DDP's gradients travel: as 16-bit floats, or as products of thin matrices (PowerSGD)."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from hpcdet.store.config.resolved_config import Optimizations

_MEMORIES = ("error_dict", "p_memory_dict", "q_memory_dict")
State = dict[str, Any]


def in_turn(state: Any, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """PowerSGD of one bucket after the other, where no CUDA stream keeps them in order.

    It sends again once it has heard. Over gloo and MPI, with several buckets under way, each rank
    would do so in an order of its own, and take one bucket's numbers for another's.
    """
    future = powerSGD_hook.powerSGD_hook(state, bucket)
    if not bucket.buffer().is_cuda:
        future.wait()
    return future


class Compression:
    """The communication hook of one model.

    What PowerSGD could not send stays behind on each rank and is added to the next gradient: it
    is state of the training, each rank's own.
    """

    def __init__(self, model: DistributedDataParallel, wanted: Optimizations) -> None:
        self._powersgd: Any = None
        kind = wanted.gradient_compression
        if kind == "powersgd":
            logging.getLogger(powerSGD_hook.__name__).setLevel(logging.WARNING)
            self._powersgd = powerSGD_hook.PowerSGDState(
                None,
                matrix_approximation_rank=wanted.powersgd.rank,
                start_powerSGD_iter=wanted.powersgd.start_step,
            )
            # a lambda, since torch reads a function's types and cannot read ours
            model.register_comm_hook(self._powersgd, lambda state, bucket: in_turn(state, bucket))
        elif kind == "bf16":  # a lambda, since by its name torch refuses it over gloo and MPI
            model.register_comm_hook(
                None, lambda group, bucket: default_hooks.bf16_compress_hook(group, bucket)
            )
        elif kind:  # Determined's word for fp16 is true
            model.register_comm_hook(None, default_hooks.fp16_compress_hook)

    def state(self) -> State:
        """State that a checkpoint must hold; empty if there is none."""
        state = self._powersgd
        if state is None:
            return {}
        memories = {name: dict(getattr(state, name)) for name in _MEMORIES}
        return {"iter": state.iter, "rng": list(state.rng.get_state()), **memories}

    def load(self, saved: State, device: torch.device) -> None:
        """The inverse of ``state``; nothing is begun anew by a state of another compression."""
        state = self._powersgd
        if state is None or not saved:
            return
        state.iter = saved["iter"]
        state.rng = np.random.RandomState()
        state.rng.set_state(tuple(saved["rng"]))
        for name in _MEMORIES:
            setattr(state, name, {key: one.to(device) for key, one in saved[name].items()})

    def begin_anew(self) -> State:
        """Begin without memories of gradients; return the state before."""
        before = self.state()
        if before:
            empty: State = {name: {} for name in _MEMORIES}
            self.load({"iter": 0, "rng": before["rng"], **empty}, torch.device("cpu"))
        return before
