"""The routed forward of each module that torch offers and an operator exists for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.conv import _ConvTransposeNd

from hpcdet.guard.routing import operators
from hpcdet.guard.routing.router import Route, Router

_Forward = TypeVar("_Forward", bound=Callable[..., Any])


def eager(forward: _Forward) -> _Forward:
    """Keep a forward out of compiled code, which would take the rows of one step for ever."""
    outside: _Forward = torch.compiler.disable(forward)  # type: ignore[no-untyped-call]
    return outside


def _place(module: nn.Module) -> tuple[Router, int]:
    router, own, _ = module.__dict__["_routed"]
    return router, next(iter(own.values()))


@eager
def of_linear(self: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    """``nn.Linear``, routed."""
    return linear(x, self.weight, self.bias, *_place(self))


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, router: Router, place: int
) -> torch.Tensor:
    """A routed ``functional.linear``; in mixed precision as autocast would do it."""
    x, weight, bias = _cast(x, weight, bias)

    def operate(x: torch.Tensor, route: Route) -> torch.Tensor:
        return operators.apply(operators.Linear, x, weight, bias, route)

    return _fitted(x, 1, (router, place), "a Linear", operate)


def _fitted(
    x: torch.Tensor,
    tail: int,
    at: tuple[Router, int],
    what: str,
    operate: Callable[[torch.Tensor, Route], torch.Tensor],
) -> torch.Tensor:
    """The output of an operator on ``x``, whose last ``tail`` dimensions are of one row."""
    router, place = at
    flat, route = router.fit(place, x, tail, what)
    y = operate(flat, route)
    return y if flat is x else y.reshape(*x.shape[:2], *y.shape[1:])


def _cast(x: torch.Tensor, *parameters: torch.Tensor | None) -> Any:
    """Cast the arguments of an operator that autocast runs in 16 bits."""
    if not torch.is_autocast_enabled(x.device.type):
        return (x, *parameters)
    dtype = torch.get_autocast_dtype(x.device.type)
    fits = x.is_floating_point() and x.dtype != torch.float64
    return tuple(one.to(dtype) if one is not None and fits else one for one in (x, *parameters))


@eager
def of_convolution(self: Any, x: torch.Tensor, output_size: Any = None) -> torch.Tensor:
    """``nn.Conv1d`` to ``nn.ConvTranspose3d``, routed."""
    spatial = len(self.kernel_size)
    padding: Any = (0,) * spatial
    outer: Any = padding
    if isinstance(self, _ConvTransposeNd):
        sizes: Any = (self.stride, self.padding, self.kernel_size, spatial, self.dilation)
        padding, outer = self.padding, tuple(self._output_padding(x, output_size, *sizes))
    elif self.padding_mode != "zeros":
        x = functional.pad(x, self._reversed_padding_repeated_twice, mode=self.padding_mode)
    else:
        padding = self.padding
    x, weight, bias = _cast(x, self.weight, self.bias)
    options = (self.stride, padding, self.dilation, self.transposed, outer, self.groups)

    def operate(x: torch.Tensor, route: Route) -> torch.Tensor:
        return operators.apply(operators.Convolution, x, weight, bias, options, route)

    return _fitted(x, spatial + 1, _place(self), "a convolution", operate)


@eager
def of_embedding(self: nn.Embedding, x: torch.Tensor) -> torch.Tensor:
    """``nn.Embedding``, routed."""
    padding = -1 if self.padding_idx is None else self.padding_idx

    def operate(x: torch.Tensor, route: Route) -> torch.Tensor:
        return operators.apply(operators.Embedding, x, self.weight, padding, route)

    return _fitted(x, 0, _place(self), "an Embedding", operate)


def _wide(x: torch.Tensor) -> torch.Tensor:
    """Autocast computes norms in 32 bits."""
    short = x.dtype in (torch.float16, torch.bfloat16)
    return x.float() if short and torch.is_autocast_enabled(x.device.type) else x


@eager
def of_layer_norm(self: nn.LayerNorm, x: torch.Tensor) -> torch.Tensor:
    """``nn.LayerNorm``, routed."""
    shape = list(self.normalized_shape)

    def operate(x: torch.Tensor, route: Route) -> torch.Tensor:
        options = (shape, self.eps, route)
        return operators.apply(operators.LayerNorm, x, self.weight, self.bias, *options)

    return _fitted(_wide(x), len(shape), _place(self), "a LayerNorm", operate)


@eager
def of_group_norm(self: nn.GroupNorm, x: torch.Tensor) -> torch.Tensor:
    """``nn.GroupNorm``, routed."""

    def operate(x: torch.Tensor, route: Route) -> torch.Tensor:
        options = (self.num_groups, self.eps, route)
        return operators.apply(operators.GroupNorm, x, self.weight, self.bias, *options)

    return _fitted(_wide(x), max(x.dim() - 1, 1), _place(self), "a GroupNorm", operate)


@eager
def of_rms_norm(self: nn.RMSNorm, x: torch.Tensor) -> torch.Tensor:
    """``nn.RMSNorm``, routed."""
    shape = list(self.normalized_shape)
    normed = functional.rms_norm(_wide(x), shape, None, self.eps)

    def operate(x: torch.Tensor, route: Route) -> torch.Tensor:
        return operators.apply(operators.Elementwise, x, self.weight, route)

    return _fitted(normed, len(shape), _place(self), "an RMSNorm", operate)
