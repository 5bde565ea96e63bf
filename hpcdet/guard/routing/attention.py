"""The routed forward of ``nn.MultiheadAttention``: its projections are routed linear maps."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from hpcdet.guard.routing.boundary import bounded
from hpcdet.guard.routing.native import eager, linear
from hpcdet.guard.routing.router import Router


@eager
def of_attention(
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
    """Compute ``functional.multi_head_attention_forward`` without returning weights."""
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
    q, k, v = (_heads(one, self.num_heads) for one in parts)
    mask, causal = _merged_mask(self, query, key_padding_mask, attn_mask, is_causal)
    attended = functional.scaled_dot_product_attention(
        q, k, v, mask, self.dropout if self.training else 0.0, causal
    )
    joined = attended.transpose(1, 2).reshape(batch, length, width)
    out = _part(
        joined, self.out_proj.weight, self.out_proj.bias, router, own.get("out_proj.weight")
    )
    out = out.transpose(0, 1).contiguous()  # in memory as torch's own, for a dropout to come
    return (out.transpose(0, 1) if self.batch_first else out), None


def _heads(part: torch.Tensor, heads: int) -> torch.Tensor:
    """A projection of [batch, length, width] as [batch, heads, length, width of a head].

    In memory it lies as torch's own does, or dropout would meet other entries.
    """
    batch, length, _ = part.shape
    lying = part.transpose(0, 1).contiguous().view(length, batch * heads, -1)
    return lying.transpose(0, 1).view(batch, heads, length, -1)


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
