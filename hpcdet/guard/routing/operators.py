"""Operators whose parameters learn from some rows only; what flows on to their inputs is whole.

Of a linear map ``y = W x`` autograd needs ``W' gy`` for its input and the sum over rows of
``gy x'`` for its weight: two products, of which only the second leaves rows out. Rows of weight 0
are left out, not multiplied: a NaN among them would poison the sum.

Sources: the products are those of autograd's own formulas (``derivatives.yaml``); leaving rows of
the second out is gradient routing per parameter (Cloud et al. 2024, Shilov et al. 2025).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

from hpcdet.guard.routing.router import Route, RowWeights

Tensor = torch.Tensor
Maybe = Tensor | None
aten = torch.ops.aten


def apply(operator: type[torch.autograd.Function], *args: Any) -> Tensor:
    """The output of one of these operators."""
    found: Tensor = operator.apply(*args)  # type: ignore[no-untyped-call]
    return found


class Linear(torch.autograd.Function):
    """``functional.linear`` of input[rows, …, in]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Maybe, route: Route) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.route, ctx.biased = route, bias is not None
        return functional.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gy: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        gx = gy @ weight if ctx.needs_input_grad[0] else None
        gw = gb = None
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            kept = ctx.route.check("a Linear")
            out = kept.weigh(kept.select(gy)).reshape(-1, gy.shape[-1])
            if ctx.needs_input_grad[1]:
                gw = out.t() @ kept.select(x).reshape(-1, x.shape[-1])
            if ctx.biased and ctx.needs_input_grad[2]:
                gb = out.sum(0)
        return gx, gw, gb, None


class Convolution(torch.autograd.Function):
    """``aten.convolution`` of input[rows, channels, …]; ``options`` from stride to groups."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Maybe,
        options: tuple[Any, ...],
        route: Route,
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.route, ctx.options = route, options
        ctx.bias = None if bias is None else list(bias.shape)
        found: Tensor = aten.convolution(x, weight, bias, *options)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gy: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        of_x, of_w, of_b = ctx.needs_input_grad[:3]
        gx = gw = gb = None
        if of_x:
            wanted = [True, False, False]
            gx = aten.convolution_backward(gy, x, weight, None, *ctx.options, wanted)[0]
        if of_w or of_b:
            kept = ctx.route.check("a convolution")
            out = kept.weigh(kept.select(gy))
            if len(out) == 0:  # which some kernels do not take
                gw = torch.zeros_like(weight) if of_w else None
                gb = gy.new_zeros(ctx.bias) if of_b else None
            else:
                _, gw, gb = aten.convolution_backward(
                    out, kept.select(x), weight, ctx.bias, *ctx.options, [False, of_w, of_b]
                )
        return gx, gw, gb, None, None


class Embedding(torch.autograd.Function):
    """``functional.embedding`` of indices[rows, …]."""

    @staticmethod
    def forward(
        ctx: Any,
        indices: Tensor,
        weight: Tensor,
        padding: int,
        route: Route,
    ) -> Tensor:
        ctx.save_for_backward(indices)
        ctx.route, ctx.padding, ctx.entries = route, padding, len(weight)
        found: Tensor = aten.embedding(weight, indices, padding, False, False)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gy: Tensor) -> Any:
        [indices] = ctx.saved_tensors
        kept = ctx.route.check("an Embedding")
        gw = aten.embedding_dense_backward(
            kept.weigh(kept.select(gy)), kept.select(indices), ctx.entries, ctx.padding, False
        )
        return None, gw, None, None


class LayerNorm(torch.autograd.Function):
    """``functional.layer_norm`` of input[rows, …] over its last dimensions, ``shape``."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Maybe,
        shape: list[int],
        eps: float,
        route: Route,
    ) -> Tensor:
        y, mean, rstd = aten.native_layer_norm(x, shape, weight, bias, eps)
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        ctx.route, ctx.shape = route, shape
        found: Tensor = y
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gy: Tensor) -> Any:
        x, weight, bias, mean, rstd = ctx.saved_tensors
        of_x, of_w, of_b = ctx.needs_input_grad[:3]
        gx = gw = gb = None
        back, gy = aten.native_layer_norm_backward, gy.contiguous()
        if of_x:
            gx = back(gy, x, ctx.shape, mean, rstd, weight, bias, [True, False, False])[0]
        if of_w or of_b:
            kept = ctx.route.check("a LayerNorm")
            _, gw, gb = back(
                kept.weigh(kept.select(gy)),
                *(kept.select(x), ctx.shape, kept.select(mean), kept.select(rstd)),
                *(weight, bias, [False, of_w, of_b and bias is not None]),
            )
        return gx, gw, gb, None, None, None


class GroupNorm(torch.autograd.Function):
    """``functional.group_norm`` of input[rows, channels, …]."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        groups: int,
        eps: float,
        route: Route,
    ) -> Tensor:
        x = x.contiguous()
        ctx.sizes = (x.shape[1], x[0, 0].numel() if len(x) else 1, groups)
        channels, each, _ = ctx.sizes
        y, mean, rstd = aten.native_group_norm(x, weight, bias, len(x), channels, each, groups, eps)
        ctx.save_for_backward(x, weight, mean, rstd)
        ctx.route = route
        found: Tensor = y
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gy: Tensor) -> Any:
        x, weight, mean, rstd = ctx.saved_tensors
        of_x, of_w, of_b = ctx.needs_input_grad[:3]
        gx = gw = gb = None
        back, gy = aten.native_group_norm_backward, gy.contiguous()
        if of_x:
            sizes = (len(x), *ctx.sizes)
            gx = back(gy, x, mean, rstd, weight, *sizes, [True, False, False])[0]
        if of_w or of_b:
            kept = ctx.route.check("a GroupNorm")
            out = kept.weigh(kept.select(gy))
            if len(out) == 0:
                gw, gb = torch.zeros_like(weight), torch.zeros_like(weight)
            else:
                of_kept = (kept.select(x), kept.select(mean), kept.select(rstd), weight)
                _, gw, gb = back(out, *of_kept, len(out), *ctx.sizes, [False, of_w, of_b])
        return gx, gw, gb, None, None, None


class Elementwise(torch.autograd.Function):
    """``x * weight`` of input[rows, …] and a weight over its last dimensions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, route: Route) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.route = route
        return x * weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gy: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        gx = gy * weight if ctx.needs_input_grad[0] else None
        gw = None
        if ctx.needs_input_grad[1]:
            kept = ctx.route.check("a norm's weight")
            out = kept.weigh(kept.select(gy)) * kept.select(x)
            gw = out.reshape(-1, *weight.shape).sum(0)
        return gx, gw, None


def join(
    route: Route,
    rows: Sequence[tuple[int, RowWeights | None]],
    parts: Sequence[Tensor],
    stand_ins: Sequence[Tensor],
    wholes: Sequence[Tensor],
    parameters: Sequence[Tensor],
) -> tuple[Tensor, ...]:
    """The values of ``wholes``, through which parameters learn as stand-ins do through ``parts``.

    Args:
        rows: for each output its dimension of rows, and how much each counts.
        parts: the outputs of a run in which only the stand-ins learn; empty: nobody does.
    """
    found: tuple[Tensor, ...] = _Join.apply(  # type: ignore[no-untyped-call]
        route, rows, parts, stand_ins, *wholes, *parameters
    )
    return found


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        route: Route,
        rows: Sequence[tuple[int, RowWeights | None]],
        parts: Sequence[Tensor],
        stand_ins: Sequence[Tensor],
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.route, ctx.rows, ctx.parts, ctx.stand_ins = route, rows, parts, stand_ins
        return tuple(one.clone() for one in tensors[: len(rows)])  # may be changed in place

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gys: Tensor) -> Any:
        ctx.route.check("a module")
        learned: Sequence[Maybe] = [torch.zeros_like(one) for one in ctx.stand_ins]
        if ctx.parts:
            masked = [_masked(gy, *of_one) for gy, of_one in zip(gys, ctx.rows, strict=True)]
            learned = torch.autograd.grad(
                ctx.parts, ctx.stand_ins, masked, retain_graph=True, allow_unused=True
            )
        return (None, None, None, None, *gys, *learned)


def _masked(gy: Tensor, dim: int, rows: RowWeights) -> Tensor:
    """A gradient times the weights of its rows, those of weight 0 being 0 whatever they are."""
    if rows.plain:
        return gy
    first = gy.movedim(dim, 0)
    flat = first if len(first) == rows.rows else first.flatten(0, 1)  # of tokens
    if rows.kept is None:
        return rows.weigh(flat).reshape(first.shape).movedim(0, dim)
    part = torch.zeros_like(flat)
    part.index_copy_(0, rows.kept, rows.weigh(flat.index_select(0, rows.kept)))
    return part.reshape(first.shape).movedim(0, dim)
