"""Models that FSDP2 has divided over ranks, made whole for as long as they are probed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

_COPIES = 7
"""Whole parameters that probes hold at once: themselves, a copy, gradients by two ways, one of 64
bits."""


def is_divided(models: Sequence[nn.Module]) -> bool:
    """True if some parameters lie in parts on several ranks."""
    return any(hasattr(one, "full_tensor") for model in models for one in model.parameters())


def lacks_room(models: Sequence[nn.Module], device: torch.device) -> str:
    """Say what a device lacks for ``whole``; "" if it has enough, or is the host."""
    if device.type != "cuda":
        return ""
    size = sum(one.numel() * one.element_size() for m in models for one in m.parameters())
    free, _ = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if free >= _COPIES * size:
        return ""
    return f"that takes {_COPIES * size / 2**30:.1f} GiB, and {device} has {free / 2**30:.1f} GiB"


@contextlib.contextmanager
def whole(models: Sequence[nn.Module]) -> Iterator[None]:
    """Around passes that each rank makes by itself: parameters are whole, nothing is exchanged.

    Stand-ins take the places of parameters that are divided, in the type that mixed precision
    computes in, and FSDP's hooks are left out but for what they make of types. Afterwards modules
    have their own parameters again, with the gradients that these had. All ranks enter together;
    each leaves when it is ready.
    """
    with contextlib.ExitStack() as back:
        stand_ins: dict[int, nn.Parameter] = {}
        for model in models:
            divide_again(model)
            types = _types(model)
            for module in model.modules():
                _put_whole(module, types.get(module), stand_ins, back)
            for module in model.modules():
                _leave_hooks_out(module, back)
        yield


def divide_again(model: nn.Module) -> None:
    """Divide what the last forward pass has left whole."""
    for module in model.modules():
        if hasattr(module, "reshard"):
            cast("Any", module).reshard()


def _types(model: nn.Module) -> dict[nn.Module, torch.dtype | None]:
    """The type that each module's own parameters are computed in: that of its innermost unit."""
    found: dict[nn.Module, torch.dtype | None] = {}

    def visit(module: nn.Module, dtype: torch.dtype | None) -> None:
        policy = _precision(module)
        dtype = dtype if policy is None else policy.param_dtype
        found[module] = dtype
        for child in module.children():
            visit(child, dtype)

    visit(model, None)
    return found


def _put_whole(
    module: nn.Module,
    dtype: torch.dtype | None,
    stand_ins: dict[int, nn.Parameter],
    back: contextlib.ExitStack,
) -> None:
    for name, one in list(module._parameters.items()):
        if one is None or not hasattr(one, "full_tensor"):
            continue
        if id(one) not in stand_ins:
            values = cast("Any", one.detach()).full_tensor()
            values = values.to(dtype or values.dtype)
            stand_ins[id(one)] = nn.Parameter(values, one.requires_grad)
        module._parameters[name] = stand_ins[id(one)]
        back.callback(module._parameters.__setitem__, name, one)


def _leave_hooks_out(module: nn.Module, back: contextlib.ExitStack) -> None:
    policy = _precision(module)
    if policy is None:
        return
    for hooks in (module._forward_pre_hooks, module._forward_hooks):
        before = dict(hooks)
        back.callback(hooks.update, before)
        back.callback(hooks.clear)
        for key in [key for key, hook in before.items() if _is_fsdp(hook)]:
            del hooks[key]
    if policy.param_dtype is not None and policy.cast_forward_inputs:
        cast_inputs = _caster(policy.param_dtype)
        handle = module.register_forward_pre_hook(
            lambda _, args, kwargs: cast_inputs((args, kwargs)), prepend=True, with_kwargs=True
        )
        back.callback(handle.remove)
    if policy.output_dtype is not None:
        cast_output = _caster(policy.output_dtype)
        handle = module.register_forward_hook(lambda _, __, output: cast_output(output))
        back.callback(handle.remove)


def _caster(dtype: torch.dtype) -> Callable[[Any], Any]:
    def to_type(one: torch.Tensor) -> torch.Tensor:
        return one.to(dtype) if one.is_floating_point() else one

    return lambda tree: tree_map_only(torch.Tensor, to_type, tree)


def _precision(module: nn.Module) -> Any:
    """The mixed precision of a unit of FSDP; None of other modules."""
    hooks: Iterable[Any] = module._forward_pre_hooks.values()
    found = [hook.__self__ for hook in hooks if _is_fsdp(hook)]
    return getattr(found[0], "_mp_policy", None) if found else None


def _is_fsdp(hook: Any) -> bool:
    owner = type(getattr(hook, "__self__", None))
    return owner.__module__.startswith("torch.distributed.fsdp")
