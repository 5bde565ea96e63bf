"""State that can be reached from a trial and that no checkpoint holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

from hpcdet.data import object_graph, rng
from hpcdet.data.stream_readers import Stateful
from hpcdet.pytorch.api.callback import PyTorchCallback
from hpcdet.pytorch.api.context import PyTorchTrialContext
from hpcdet.pytorch.api.data_loader import DataLoader
from hpcdet.pytorch.api.lr_scheduler import LRScheduler
from hpcdet.pytorch.api.trial import PyTorchTrial
from hpcdet.pytorch.metrics.reducers import MetricReducer

_SCALERS = (torch.amp.GradScaler,)
_SCHEDULERS = (torch.optim.lr_scheduler.LRScheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
_ONCE = ("__init__", "build_training_data_loader", "build_validation_data_loader")
"""Methods that every attempt calls once, and alike: what they draw from begins anew with it."""
_NOT_ENTERED = (
    PyTorchTrialContext,
    DataLoader,  # a data set's own generators are seeded for each sample
    TorchDataLoader,
    Dataset,
    LRScheduler,
    MetricReducer,
    torch.nn.Module,
    torch.optim.Optimizer,
    torch.Generator,
    *_SCALERS,
    *_SCHEDULERS,
)


def unregistered(
    trial: PyTorchTrial, context: PyTorchTrialContext, callbacks: Mapping[str, PyTorchCallback]
) -> list[str]:
    """Paths of state that training may change and no checkpoint holds, each with its remedy.

    Looked through are the trial, its callbacks and the modules that are saved, with the global
    things that their methods name. A callback or module that says a state of its own is believed.
    Modules count if they train parameters or keep buffers, others if they are optimizers,
    schedulers, enabled gradient scalers or random generators, or say a ``state_dict``.
    """
    saved = list(_known(context, callbacks))
    known = {id(one) for one in saved}
    datasets: set[int] = set()

    def enters(value: Any) -> bool:
        if isinstance(value, DataLoader | TorchDataLoader):
            datasets.add(id(value.dataset))
        if isinstance(value, torch.nn.Module | PyTorchCallback):
            return id(value) in known and not _says(value)
        return not (isinstance(value, _NOT_ENTERED) or id(value) in known or id(value) in datasets)

    roots = {"trial": trial, "callbacks": dict(callbacks)}
    modules = [one for one in saved if isinstance(one, torch.nn.Module)]
    for one in {type(one): one for one in (trial, *callbacks.values(), *modules)}:
        roots |= object_graph.named(one, without=_ONCE)
    found = []
    for path, value in object_graph.walk(roots, enters):
        if id(value) not in known and (kind := _kind(value)):
            found.append(f"{path} ({type(value).__name__}): {kind}")
    return found


def _known(context: PyTorchTrialContext, callbacks: Mapping[str, PyTorchCallback]) -> Iterable[Any]:
    for model in context.models:
        yield from model.modules()
    yield from context.optimizers
    for wrapped in context.lr_schedulers:
        yield wrapped
        yield from (one for _, one in object_graph.walk({"": wrapped.scheduler}, _nests))
    yield context.scaler
    yield from context.reducers
    yield from callbacks.values()
    yield from context.core.session.registered.generators.values()
    for item in context.core.session.registered:
        yield item
        if isinstance(item, torch.nn.Module):
            yield from item.modules()


def _says(value: torch.nn.Module | PyTorchCallback) -> bool:
    """Whether something that is saved has a say in what is saved of it."""
    if isinstance(value, PyTorchCallback):
        own = (PyTorchCallback.state_dict, PyTorchCallback.on_checkpoint_save_start)
        return (type(value).state_dict, type(value).on_checkpoint_save_start) != own
    return type(value).get_extra_state is not torch.nn.Module.get_extra_state


def _nests(value: Any) -> bool:
    return isinstance(value, (list, tuple, dict, *_SCHEDULERS))


def _kind(value: Any) -> str:
    """The remedy for a value; "" where none is needed."""
    if isinstance(value, torch.nn.Module):
        return "pass it to context.wrap_model, or register_state" if _learns(value) else ""
    if isinstance(value, torch.optim.Optimizer):
        return "pass it to context.wrap_optimizer"
    if isinstance(value, _SCHEDULERS):
        return "pass it to context.wrap_lr_scheduler"
    if isinstance(value, _SCALERS):
        return "pass it to context.wrap_scaler" if value.is_enabled() else ""
    if rng.is_own(value):
        return "pass it to context.register_generator"
    if isinstance(value, _NOT_ENTERED) or not isinstance(value, Stateful):
        return ""
    return "pass it to context.register_state"


def _learns(module: torch.nn.Module) -> bool:
    """Whether training may change a module. Weights of a loss are buffers, and constant."""
    if any(one.requires_grad for one in module.parameters()):
        return True
    parts = (one for one in module.modules() if one.training)
    losses = torch.nn.modules.loss._Loss
    return any(
        not isinstance(one, losses) and any(True for _ in one.buffers(recurse=False))
        for one in parts
    )
