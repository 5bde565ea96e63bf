"""Checks of ``reproducibility``: what goes together with it, and what does not."""

from __future__ import annotations

from collections.abc import Iterator

from hpcdet.config.check import search_space
from hpcdet.config.check.problems import Problem
from hpcdet.store.config.resolved_config import Resolved


def errors(config: Resolved) -> Iterator[Problem]:
    """Yield every key that no bits could be promised with, or that has no meaning."""
    if config.reproducibility.device == "cpu" and config.distributed.backend == "nccl":
        what = "nccl needs accelerators, and reproducibility.device: cpu hides them"
        yield Problem("distributed.backend", what, "backend: gloo, or leave one of them out")
    wanted, slots = config.reproducibility, config.resources.slots_per_trial
    count, key = wanted.virtual_ranks, "reproducibility.virtual_ranks"
    if wanted.elastic is not None:
        yield from _inexact(config)
    if count is None:
        return
    if wanted.elastic is None:
        yield Problem(
            key, "the key has no effect without elastic", "add elastic: exact, or leave it out"
        )
    if slots > count:
        what = f"{slots} slots cannot share {count} virtual ranks"
        yield Problem(key, what, f"at least {slots}: the most slots that a trial will ever have")
    size = search_space.least(config.hyperparameters.get("global_batch_size"))
    if size is not None and slots <= size < count:
        what = f"a batch of {size:g} cannot be cut into {count} virtual ranks"
        yield Problem("hyperparameters.global_batch_size", what, f"at least {count}")


def _inexact(config: Resolved) -> Iterator[Problem]:
    """Options whose order of sums or kernels depends on the number of ranks."""
    asked, why = config.optimizations, "reproducibility.elastic: exact cannot vouch for its bits"
    hint = "leave one of them out"
    if config.distributed.strategy != "ddp":
        yield Problem("distributed.strategy", why, hint)
    for name in ("gradient_compression", "compile"):
        if getattr(asked, name):
            yield Problem(f"optimizations.{name}", why, hint)
