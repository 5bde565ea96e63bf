"""Sums of metrics over batches, and over ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from hpcdet.core.training import Peers
from hpcdet.errors import ConfigError
from hpcdet.pytorch.metrics.reducers import MetricReducer, Reducer

_START = {Reducer.AVG: 0.0, Reducer.SUM: 0.0, Reducer.MAX: -math.inf, Reducer.MIN: math.inf}
_INNER: dict[Reducer, Callable[[torch.Tensor], torch.Tensor]] = {
    Reducer.AVG: torch.mean,
    Reducer.SUM: torch.sum,
    Reducer.MAX: torch.max,
    Reducer.MIN: torch.min,
}


class Tally:
    """Running reductions of scalar metrics in float64.

    Those that come from an accelerator stay there, so that nobody waits for it; others are plain
    numbers, which are added in a tenth of the time.

    Args:
        kind: how a metric of a given name is reduced.
    """

    def __init__(self, kind: Callable[[str], Reducer]) -> None:
        self._kind = kind
        self.values: dict[str, torch.Tensor | float] = {}
        self.weights: dict[str, float] = {}

    def add(self, metrics: Mapping[str, Any], weight: float) -> None:
        """Count one batch's metrics.

        Of a metric with several values, these are reduced first, in the same way.

        Raises:
            ConfigError: a metric that is no number.
        """
        for name, value in metrics.items():
            kind = self._kind(name)
            number = _number(name, value, kind)
            old = self.values[name] if name in self.values else _START[kind]
            if kind is Reducer.AVG:
                new = old + number * weight
            elif kind is Reducer.SUM:
                new = old + number
            else:
                new = _extreme(kind, old, number)
            self.values[name] = new
            self.weights[name] = self.weights.get(name, 0.0) + weight

    def plain(self) -> dict[str, tuple[float, float]]:
        """Name, reduction so far, and weight."""
        return {name: (float(value), self.weights[name]) for name, value in self.values.items()}

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        values = {
            name: torch.as_tensor(value, dtype=torch.float64, device="cpu")
            for name, value in self.values.items()
        }
        return {"values": values, "weights": self.weights}

    def load(self, state: Mapping[str, Any], device: torch.device) -> None:
        """The inverse of ``state``."""
        self.values = {
            name: value.item() if device.type == "cpu" else value.to(device)
            for name, value in state["values"].items()
        }
        self.weights = dict(state["weights"])

    def clear(self) -> None:
        self.values, self.weights = {}, {}

    def reduced(self, peers: Peers) -> dict[str, float]:
        """Over all ranks, in order of rank, on all ranks."""
        return self.combined(peers.allgather(self.plain()))

    def combined(self, everyone: Sequence[Mapping[str, tuple[float, float]]]) -> dict[str, float]:
        """One value of each metric from several tallies' ``plain``, in their order."""
        names = dict.fromkeys(name for one in everyone for name in one)
        return {
            name: _combine(self._kind(name), [one[name] for one in everyone if name in one])
            for name in names
        }


def _combine(kind: Reducer, parts: list[tuple[float, float]]) -> float:
    values = [value for value, _ in parts]
    if kind is Reducer.AVG:
        weight = sum(weight for _, weight in parts)
        return sum(values) / weight if weight else math.nan
    if kind is Reducer.SUM:
        return sum(values)
    return max(values) if kind is Reducer.MAX else min(values)


def _number(name: str, value: Any, kind: Reducer) -> torch.Tensor | float:
    if isinstance(value, float):
        return value
    if isinstance(value, torch.Tensor):
        if value.is_cpu and value.numel() == 1:
            return float(value.item())
        tensor = value.detach()
    else:
        try:
            tensor = torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError):
            tensor = torch.empty(0)
    if tensor.numel() == 0:
        raise ConfigError(
            f"metric {name!r} is a {type(value).__name__} without a number",
            hint="return numbers, or use context.wrap_reducer",
        )
    if tensor.numel() > 1:
        tensor = _INNER[kind](tensor.reshape(-1).to(torch.float64))
    if tensor.device.type == "cpu":
        return float(tensor.item())
    return tensor.reshape(()).to(torch.float64)


def _extreme(kind: Reducer, old: torch.Tensor | float, new: torch.Tensor | float) -> Any:
    """The larger or the smaller one; NaN, if one is."""
    if isinstance(old, float) and isinstance(new, float):
        if math.isnan(old):
            return old
        return new if math.isnan(new) or (new > old) is (kind is Reducer.MAX) else old
    device = old.device if isinstance(old, torch.Tensor) else new.device  # type: ignore[union-attr]
    pair = [torch.as_tensor(one, dtype=torch.float64, device=device) for one in (old, new)]
    return (torch.maximum if kind is Reducer.MAX else torch.minimum)(*pair)


def across_ranks(reducers: Mapping[str, MetricReducer], peers: Peers) -> dict[str, Any]:
    """The values of custom reducers over all ranks, on all ranks."""
    found: dict[str, Any] = {}
    for name, reducer in reducers.items():
        parts = peers.gather(reducer.per_slot_reduce(), f"per_slot_reduce of reducer {name}")
        found |= over_all(name, reducer, parts, peers)
    return found


def over_all(name: str, reducer: MetricReducer, parts: list[Any], peers: Peers) -> dict[str, Any]:
    """The value or values of a reducer from its parts, which rank 0 has, on all ranks."""
    value = reducer.cross_slot_reduce(parts) if peers.ranks.chief else None
    value = dict(value) if isinstance(value, Mapping) else value
    value = peers.broadcast(value, f"cross_slot_reduce of reducer {name}")
    return value if isinstance(value, dict) else {name: value}


def named(metrics: Any) -> dict[str, Any]:
    """The result of ``train_batch`` as metrics by name; a bare value is the loss."""
    if metrics is None:
        return {}
    return dict(metrics) if isinstance(metrics, dict | Mapping) else {"loss": metrics}
