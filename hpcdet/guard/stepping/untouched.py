"""Closed layers, which nothing may change but accounted passes and steps: whether code has.

A layer is closed where not every source may change it fully. Between two passes or steps its
modules, weights and gradients must be the same tensors and objects, and none may have been written
to. That takes some look-ups per parameter. What is written through ``.data`` is not seen here: it
moves no version.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hpcdet.guard.probing.whole_models import divide_again
from hpcdet.guard.routing.governed_models import GovernedModels
from hpcdet.policy.codes import PolicyRefused


@dataclass(frozen=True, slots=True)
class _Module:
    """A module with its place in another one, ``siblings[key]``, and what decides what it runs."""

    name: str
    siblings: dict[str, Any]
    key: str
    live: nn.Module
    kind: type[nn.Module]
    forward: Any

    def holds(self) -> bool:
        live = self.live
        return (
            self.siblings.get(self.key) is live
            and live.__class__ is self.kind
            and live.__dict__.get("forward") is self.forward
        )


@dataclass(slots=True)
class _Weight:
    """A parameter as it was left.

    Attributes:
        owner, key: where its module has it; ``owner`` None where FSDP2 exchanges it at each pass.
        written: its version, and its address where it has one of its own.
        gradient: a reference that keeps nothing alive; None if there was none.
    """

    name: str
    live: nn.Parameter
    owner: dict[str, Any] | None
    key: str
    written: tuple[int, int] = (0, 0)
    gradient: weakref.ref[torch.Tensor] | None = None
    version: int = 0

    def now(self) -> tuple[int, int]:
        return self.live._version, 0 if self.owner is None else self.live.data_ptr()

    def seal(self) -> None:
        self.written = self.now()
        gradient = self.live.grad
        self.gradient = None if gradient is None else weakref.ref(gradient)
        self.version = 0 if gradient is None else gradient._version

    def has_its_gradient(self) -> bool:
        """Whether the gradient is as it was left, dropped, or zero."""
        gradient = self.live.grad
        if gradient is None:
            return True
        left = None if self.gradient is None else self.gradient()
        return (gradient is left and gradient._version == self.version) or not gradient.any()


class Untouched:
    """Modules, weights and gradients of closed layers, as accounted passes and steps leave them."""

    def __init__(self, models: GovernedModels) -> None:
        self._models = models
        self._begun = 0
        self._modules: list[_Module] = []
        self._weights: list[_Weight] = []

    def begin(self) -> None:
        """Know the models as they are, before the first batch; anew where there are more since."""
        if self._begun == len(self._models.models):
            return
        self._begun = len(self._models.models)
        self._modules = [one for model in self._models.models for one in _modules(model)]
        self._weights = list(self._closed())
        self.seal()

    def _closed(self) -> Iterator[_Weight]:
        for model, layers in zip(self._models.models, self._models.maps, strict=True):
            divide_again(model)  # a validation may have left it whole
            place = {
                name: self._models.router.place(layers.layers[one.layer])
                for one in layers.parameters
                for name in one.names
            }
            owners = {
                f"{name}.{key}" if name else key: (module._parameters, key)
                for name, module in model.named_modules()
                for key in module._parameters
            }
            for name, live in model.named_parameters():
                if place.get(name) in self._models.closed:
                    owner, key = owners[name]
                    yield _Weight(name, live, None if hasattr(live, "device_mesh") else owner, key)

    def seal(self) -> None:
        """Take weights and gradients as they are now: an accounted pass or step has ended."""
        for one in self._weights:
            one.seal()

    def check(self) -> None:
        """See that nothing has changed since ``seal``.

        Raises:
            PolicyRefused: a module (P08), a weight or a gradient has (P15).
        """
        for module in self._modules:
            if not module.holds():
                raise _exchanged(f"the module {module.name}")
        for one in self._weights:
            if one.owner is not None and one.owner.get(one.key) is not one.live:
                raise _exchanged(f"the parameter {one.name}")
            if one.now() != one.written:
                raise PolicyRefused(
                    "P15",
                    f"{one.name} was changed, and by no step of a wrapped optimizer",
                    where="train_batch",
                    hint="leave weights to optimizers, and average or clamp those of a copy",
                )
            if not one.has_its_gradient():
                raise PolicyRefused(
                    "P15",
                    f"the gradient of {one.name} was changed, and by no context.backward",
                    where="train_batch",
                    hint="add to the loss, and clip or average gradients in clip_grads of the step",
                )


def _modules(model: nn.Module) -> Iterator[_Module]:
    """The routed modules of a model, and those that they are in."""
    top, name = {"": model}, type(model).__name__
    yield _Module(name, top, "", model, model.__class__, model.__dict__.get("forward"))
    for path, parent in model.named_modules():
        for key, live in parent._modules.items():
            if live is not None and any("_routed" in one.__dict__ for one in live.modules()):
                name = f"{path}.{key}" if path else key
                forward = live.__dict__.get("forward")
                yield _Module(name, parent._modules, key, live, live.__class__, forward)


def _exchanged(what: str) -> PolicyRefused:
    return PolicyRefused(
        "P08",
        f"{what} is another one, or has another class or forward, than when training began",
        where="train_batch",
        hint="leave modules and their forward as wrap_model was given them",
    )
