"""Buffers of a model by name: as they were, put back."""

from __future__ import annotations

from collections.abc import Mapping

import torch


def copies(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """What each buffer holds now."""
    return {name: one.detach().clone() for name, one in model.named_buffers()}


def put_back(model: torch.nn.Module, saved: Mapping[str, torch.Tensor]) -> None:
    """Let buffers hold what they held.

    One that has another shape by now, or is gone, is a cache: the model makes it anew when it
    needs it.
    """
    buffers = dict(model.named_buffers())
    with torch.no_grad():
        for name, value in saved.items():
            if name in buffers and buffers[name].shape == value.shape:
                buffers[name].copy_(value)
