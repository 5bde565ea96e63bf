"""Modules whose parameters are routed: their class is exchanged in place, their names stay.

What torch offers as a module of its own (linear, convolution, embedding, norms, attention) is
routed by an operator. Any other module with parameters runs twice (``boundary``). A layer that
every source may change keeps its modules as they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.utils import parametrize
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from hpcdet.guard.routing import attention, native
from hpcdet.guard.routing.boundary import bounded
from hpcdet.guard.routing.layer_map import LayerMap
from hpcdet.guard.routing.router import Router
from hpcdet.policy.codes import PolicyRefused

Places = dict[str, int]
"""Names of a module's parameters and the places of their layers, without those of open ones."""

_WHOLE = (nn.MultiheadAttention, nn.RNNBase)
"""Modules that use their children's parameters themselves; parametrized ones do, too."""


_HOOKS = (BasePruningMethod, SpectralNorm, WeightNorm)
"""Hooks that compute a weight from parameters before the forward."""


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
    twice = []
    inside: set[nn.Module] = set()
    for name, module in list(model.named_modules()):
        _refuse_coupled(module, name)
        if module in inside:
            continue
        whole = isinstance(module, _WHOLE) or parametrize.is_parametrized(module)
        if whole:
            inside.update(module.modules())
        own = _own(module, f"{name}." if name else "", places, deep=whole)
        if own and _exchange(module, name or type(model).__name__, own, router):
            twice.append(name or type(model).__name__)
    return twice


def _own(module: nn.Module, prefix: str, places: Mapping[str, int], *, deep: bool) -> Places:
    named = module.named_parameters(recurse=deep, remove_duplicate=False)
    return {name: places[prefix + name] for name, _ in named if prefix + name in places}


def _refuse_coupled(module: nn.Module, name: str) -> None:
    tracks = isinstance(module, _InstanceNorm) and module.track_running_stats
    if not (isinstance(module, _BatchNorm) or tracks):
        return
    _coupled(module, name)
    module.register_forward_pre_hook(lambda one, _: _coupled(one, name))


def _coupled(module: Any, name: str) -> None:
    if not module.training and module.running_mean is not None:
        return
    raise PolicyRefused(
        "P07",
        f"{name} is a {type(module).__name__}, whose output for a row depends on the other rows",
        where="model",
        hint="use GroupNorm or LayerNorm, or put it into eval mode before wrap_model",
    )


def _exchange(module: nn.Module, name: str, own: Places, router: Router) -> bool:
    """Give a module its routed class; True if it runs twice.

    Raises:
        PolicyRefused: its forward, weight or gradient is not what its class makes it (P08).
    """
    if "_routed" in module.__dict__:
        return _again(module, name, own)
    if "forward" in module.__dict__ or isinstance(module, torch.jit.ScriptModule):
        raise PolicyRefused(
            "P08",
            f"{name} has a forward that its class does not define",
            where="model",
            hint="wrap the model before other code changes its modules, and do not script them",
        )
    table = isinstance(module, nn.Embedding | nn.EmbeddingBag)
    if table and (module.sparse or module.scale_grad_by_freq or module.max_norm is not None):
        raise PolicyRefused(
            "P08",
            f"{name} cannot be routed with sparse, scale_grad_by_freq or max_norm",
            where="model",
            hint="leave these out: its weight would change by other rows, or outside of a step",
        )
    forward = _native(module, own)
    twice = forward is None
    hooks = module._forward_pre_hooks.values()
    if twice and any(isinstance(one, _HOOKS) for one in hooks):
        raise PolicyRefused(
            "P08",
            f"the weight of {name} is computed by a hook, outside of its forward",
            where="model",
            hint="use torch.nn.utils.parametrizations, or a module that torch itself offers",
        )
    module.__dict__["_routed"] = (router, own, name)
    kind: Any = type(module)
    module.__class__ = _routed_class(kind, forward or bounded)
    return twice


def _again(module: nn.Module, name: str, own: Places) -> bool:
    """A module of two models is routed once.

    Raises:
        PolicyRefused: it is in different layers of them (P03).
    """
    _, before, other = module.__dict__["_routed"]
    if own != before:
        raise PolicyRefused(
            "P03",
            f"{name} is {other} of another model, too, and in other layers there",
            where="model",
            hint="put the module into the same layers under both names",
        )
    return False


@functools.cache
def _routed_class(kind: Any, forward: Callable[..., Any]) -> type[nn.Module]:
    """A class of the same name whose forward is routed while gradients are recorded."""

    def routed(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        router, _, _ = self.__dict__["_routed"]
        if router.plainly or self.__dict__.get("_plainly") or not torch.is_grad_enabled():
            return kind.forward(self, *args, **kwargs)
        return forward(self, *args, **kwargs)

    members = {"forward": routed, "__module__": kind.__module__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), members)


# -- torch's own modules -------------------------------------------------------------------


def _native(module: nn.Module, own: Places) -> Callable[..., Any] | None:
    """The routed forward of a module; None if it has none of its own."""
    kind = next((one for one in _NATIVE if isinstance(module, one)), None)
    if kind is None or type(module).forward is not kind.forward:
        return None
    forward = _NATIVE[kind]
    if isinstance(module, nn.MultiheadAttention):
        split = module.in_proj_weight is None or module.bias_k is not None or module.add_zero_attn
        one = len({own.get("in_proj_weight"), own.get("in_proj_bias", own.get("in_proj_weight"))})
        return None if split or one > 1 else forward
    if len(set(own.values())) > 1:  # its weight is in another layer than its bias
        return None
    learns = [parameter.requires_grad for parameter in module.parameters()]
    plain = all(learns) and len(learns) == len(own)
    odd = isinstance(module, _ConvNd) and isinstance(module.padding, str)
    odd |= isinstance(module, nn.GroupNorm | nn.LayerNorm | nn.RMSNorm) and module.weight is None
    odd |= isinstance(module, nn.GroupNorm) and module.bias is None
    return forward if plain and not odd else None


_NATIVE: dict[type[nn.Module], Callable[..., Any]] = {
    nn.Linear: native.of_linear,
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), native.of_convolution),
    **dict.fromkeys(
        (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), native.of_convolution
    ),
    nn.Embedding: native.of_embedding,
    nn.LayerNorm: native.of_layer_norm,
    nn.GroupNorm: native.of_group_norm,
    nn.RMSNorm: native.of_rms_norm,
    nn.MultiheadAttention: attention.of_attention,
}
