"""Modules whose parameters are routed: their class is exchanged in place, their names stay.

What torch offers as a module of its own (linear, convolution, embedding, norms, attention) is
routed by an operator. Any other module with parameters runs twice (``boundary``). A layer that
every source may change keeps its modules as they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.modules.instancenorm import _InstanceNorm

from hpcdet.guard import operators
from hpcdet.guard.boundary import bounded
from hpcdet.guard.layer_map import LayerMap
from hpcdet.guard.router import Router
from hpcdet.policy.codes import PolicyRefused

_Forward = TypeVar("_Forward", bound=Callable[..., Any])
Places = dict[str, int]
"""Names of a module's parameters and the places of their layers, without those of open ones."""

_WHOLE = (nn.MultiheadAttention, nn.RNNBase)
"""Modules that use their children's parameters themselves."""


def attach(model: nn.Module, layers: LayerMap, router: Router, closed: Iterable[str]) -> list[str]:
    """Route the modules of a model, in place, before anything else wraps it.

    Args:
        closed: names of layers that not every source may change fully.

    Returns:
        Names of the modules that run twice.

    Raises:
        PolicyRefused: a module mixes the rows of a batch (P07), or cannot be routed (P08).
    """
    shut = set(closed)
    places = {
        name: router.place(layers.layers[one.layer])
        for one in layers.parameters
        for name in one.names
        if layers.layers[one.layer] in shut
    }
    if not shut:
        return []
    twice, done = [], ""
    for name, module in list(model.named_modules()):
        _refuse_coupled(module, name)
        if done and name.startswith(done):
            continue
        whole = isinstance(module, _WHOLE)
        own = _own(module, f"{name}." if name else "", places, deep=whole)
        if whole:
            done = f"{name}."
        if own and _exchange(module, name, own, router):
            twice.append(name or type(model).__name__)
    return twice


def _own(module: nn.Module, prefix: str, places: Mapping[str, int], *, deep: bool) -> Places:
    named = module.named_parameters(recurse=deep, remove_duplicate=False)
    return {name: places[prefix + name] for name, _ in named if prefix + name in places}


def _refuse_coupled(module: nn.Module, name: str) -> None:
    tracks = isinstance(module, _InstanceNorm) and module.track_running_stats
    if not (isinstance(module, _BatchNorm) or tracks):
        return
    if module.training:
        _coupled(module, name)
    module.register_forward_pre_hook(lambda one, _: _coupled(one, name) if one.training else None)


def _coupled(module: nn.Module, name: str) -> None:
    raise PolicyRefused(
        "P07",
        f"{name} is a {type(module).__name__}, whose output for a row depends on the other rows",
        where="model",
        hint="use GroupNorm or LayerNorm, or put it into eval mode before wrap_model",
    )


def _exchange(module: nn.Module, name: str, own: Places, router: Router) -> bool:
    """Give a module its routed class; True if it runs twice."""
    forward = _native(module, own)
    twice = forward is None
    module.__dict__["_routed"] = (router, own, name)
    kind: Any = type(module)
    module.__class__ = _routed_class(kind, forward or bounded)
    return twice


@functools.cache
def _routed_class(kind: Any, forward: Callable[..., Any]) -> type[nn.Module]:
    """A class of the same name whose forward is routed while gradients are recorded."""

    def routed(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled() or self.__dict__.get("_plainly"):
            return kind.forward(self, *args, **kwargs)
        return forward(self, *args, **kwargs)

    members = {"forward": routed, "__module__": kind.__module__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), members)


# -- torch's own modules -------------------------------------------------------------------


def _eager(forward: _Forward) -> _Forward:
    """Keep a forward out of compiled code, which would take the rows of one step for ever."""
    outside: _Forward = torch.compiler.disable(forward)  # type: ignore[no-untyped-call]
    return outside


def _native(module: nn.Module, own: Places) -> Callable[..., Any] | None:
    """The routed forward of a module; None if it has none of its own.

    Raises:
        PolicyRefused: its weight changes outside of the gradient, or has sparse gradients (P08).
    """
    kind = next((one for one in _NATIVE if isinstance(module, one)), None)
    if kind is None or type(module).forward is not kind.forward:
        return None
    forward = _NATIVE[kind]
    if isinstance(module, nn.Embedding) and (module.sparse or module.max_norm is not None):
        raise PolicyRefused(
            "P08",
            "an Embedding with sparse gradients or max_norm cannot be routed",
            where="model",
            hint="leave sparse and max_norm out",
        )
    if isinstance(module, nn.MultiheadAttention):
        split = module.in_proj_weight is None or module.bias_k is not None or module.add_zero_attn
        one = len({own.get("in_proj_weight"), own.get("in_proj_bias", own.get("in_proj_weight"))})
        return None if split or one > 1 else forward
    if len(set(own.values())) > 1:  # its weight is in another layer than its bias
        return None
    learns = [parameter.requires_grad for parameter in module.parameters(recurse=False)]
    plain = all(learns) and len(learns) == len(own)
    odd = isinstance(module, _ConvNd) and isinstance(module.padding, str)
    odd |= isinstance(module, nn.Embedding) and module.scale_grad_by_freq
    odd |= isinstance(module, nn.GroupNorm | nn.LayerNorm | nn.RMSNorm) and module.weight is None
    odd |= isinstance(module, nn.GroupNorm) and module.bias is None
    return forward if plain and not odd else None


def _place(module: nn.Module) -> tuple[Router, int]:
    router, own, _ = module.__dict__["_routed"]
    return router, next(iter(own.values()))


@_eager
def _linear(self: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return linear(x, self.weight, self.bias, *_place(self))


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, router: Router, place: int
) -> torch.Tensor:
    """A routed ``functional.linear``; in mixed precision as autocast would do it."""
    x, weight, bias = _cast(x, weight, bias)
    route = router.route(place, len(x), "a Linear")
    return operators.apply(operators.Linear, x, weight, bias, route)


def _cast(x: torch.Tensor, *parameters: torch.Tensor | None) -> Any:
    """What autocast makes of the arguments of an operator that it runs in 16 bits."""
    if not torch.is_autocast_enabled(x.device.type):
        return (x, *parameters)
    dtype = torch.get_autocast_dtype(x.device.type)
    fits = x.is_floating_point() and x.dtype != torch.float64
    return tuple(one.to(dtype) if one is not None and fits else one for one in (x, *parameters))


@_eager
def _convolution(self: Any, x: torch.Tensor, output_size: Any = None) -> torch.Tensor:
    router, place = _place(self)
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
    route = router.route(place, len(x), "a convolution")
    return operators.apply(operators.Convolution, x, weight, bias, options, route)


@_eager
def _embedding(self: nn.Embedding, x: torch.Tensor) -> torch.Tensor:
    router, place = _place(self)
    padding = -1 if self.padding_idx is None else self.padding_idx
    route = router.route(place, len(x), "an Embedding")
    return operators.apply(operators.Embedding, x, self.weight, padding, route)


def _wide(x: torch.Tensor) -> torch.Tensor:
    """Autocast computes norms in 32 bits."""
    short = x.dtype in (torch.float16, torch.bfloat16)
    return x.float() if short and torch.is_autocast_enabled(x.device.type) else x


@_eager
def _layer_norm(self: nn.LayerNorm, x: torch.Tensor) -> torch.Tensor:
    router, place = _place(self)
    shape, x = list(self.normalized_shape), _wide(x)
    route = router.route(place, len(x), "a LayerNorm")
    return operators.apply(operators.LayerNorm, x, self.weight, self.bias, shape, self.eps, route)


@_eager
def _group_norm(self: nn.GroupNorm, x: torch.Tensor) -> torch.Tensor:
    router, place = _place(self)
    x = _wide(x)
    route = router.route(place, len(x), "a GroupNorm")
    return operators.apply(
        operators.GroupNorm, x, self.weight, self.bias, self.num_groups, self.eps, route
    )


@_eager
def _rms_norm(self: nn.RMSNorm, x: torch.Tensor) -> torch.Tensor:
    router, place = _place(self)
    normed = functional.rms_norm(_wide(x), self.normalized_shape, None, self.eps)
    route = router.route(place, len(x), "an RMSNorm")
    return operators.apply(operators.Elementwise, normed, self.weight, route)


@_eager
def _attention(
    self: nn.MultiheadAttention,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    key_padding_mask: torch.Tensor | None = None,
    need_weights: bool = True,
    attn_mask: torch.Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """As ``functional.multi_head_attention_forward`` where no weights are asked for."""
    if need_weights or query.dim() != 3:
        options = {"attn_mask": attn_mask, "average_attn_weights": average_attn_weights}
        inputs = (query, key, value, key_padding_mask, need_weights)
        return bounded(self, *inputs, **options, is_causal=is_causal)  # type: ignore[no-any-return]
    router, own, _ = self.__dict__["_routed"]
    same = query is key and key is value
    if not self.batch_first:
        query, key, value = (one.transpose(0, 1) for one in (query, key, value))
    parts = _projected(self, query, key, value, router, own.get("in_proj_weight"), same)
    batch, length, width = query.shape
    q, k, v = (
        one.reshape(batch, one.shape[1], self.num_heads, -1).transpose(1, 2) for one in parts
    )
    mask, causal = _merged_mask(self, query, key_padding_mask, attn_mask, is_causal)
    attended = functional.scaled_dot_product_attention(
        q, k, v, mask, self.dropout if self.training else 0.0, causal
    )
    joined = attended.transpose(1, 2).reshape(batch, length, width)
    out = _part(
        joined, self.out_proj.weight, self.out_proj.bias, router, own.get("out_proj.weight")
    )
    return (out if self.batch_first else out.transpose(0, 1)), None


def _part(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    router: Router,
    place: int | None,
) -> torch.Tensor:
    if place is None:
        return functional.linear(x, weight, bias)
    return linear(x, weight, bias, router, place)


def _projected(
    self: nn.MultiheadAttention,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    router: Router,
    place: int | None,
    same: bool,
) -> tuple[torch.Tensor, ...]:
    weight, bias = self.in_proj_weight, self.in_proj_bias
    if same:
        return _part(query, weight, bias, router, place).chunk(3, dim=-1)
    biases = (None,) * 3 if bias is None else bias.chunk(3)
    return tuple(
        _part(x, w, b, router, place)
        for x, w, b in zip((query, key, value), weight.chunk(3), biases, strict=True)
    )


def _merged_mask(
    self: nn.MultiheadAttention,
    query: torch.Tensor,
    padding: torch.Tensor | None,
    mask: torch.Tensor | None,
    causal: bool,
) -> tuple[torch.Tensor | None, bool]:
    """One mask of [batch, heads, targets, keys], or what broadcasts to it."""
    if causal and padding is None:
        return None, True

    def canonical(one: torch.Tensor) -> torch.Tensor:
        if one.dtype != torch.bool:
            return one.to(query.dtype)
        return torch.zeros_like(one, dtype=query.dtype).masked_fill_(one, -torch.inf)

    merged = None
    if mask is not None:
        merged = canonical(mask)
        if merged.dim() == 3:
            merged = merged.reshape(len(query), self.num_heads, *merged.shape[1:])
    if padding is not None:
        columns = canonical(padding)[:, None, None, :]
        merged = columns if merged is None else merged + columns
    return merged, False


_NATIVE: dict[type[nn.Module], Callable[..., Any]] = {
    nn.Linear: _linear,
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), _convolution),
    **dict.fromkeys((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), _convolution),
    nn.Embedding: _embedding,
    nn.LayerNorm: _layer_norm,
    nn.GroupNorm: _group_norm,
    nn.RMSNorm: _rms_norm,
    nn.MultiheadAttention: _attention,
}
