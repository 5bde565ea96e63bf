"""The complete state of a trial: from it, training goes on bit for bit."""

from __future__ import annotations

import copy
import textwrap
from collections.abc import Mapping
from typing import Any

import torch

from hpcdet.core import warm_start
from hpcdet.data import rng
from hpcdet.errors import ConfigError, IntegrityError, Unrecoverable
from hpcdet.pytorch.api.callback import PyTorchCallback
from hpcdet.pytorch.api.context import PyTorchTrialContext
from hpcdet.pytorch.gradients import accumulated, buffers, fsdp2
from hpcdet.pytorch.gradients.accumulated import Gradients
from hpcdet.pytorch.metrics.reducers import load_state, state_of

State = dict[str, Any]


def shared(
    context: PyTorchTrialContext,
    callbacks: Mapping[str, PyTorchCallback],
    progress: State,
    gradients: Gradients,
) -> State:
    """State that is equal on all ranks (buffers are rank 0's).

    Of callbacks it has rank 0's state, for a resume with another number of ranks.
    """
    session = context.core.session
    of_all = context.division.shared_state(list(context.reducers.of(training=True)))
    if registered := session.registered.shared(session.peers):
        of_all["registered"] = registered
    of_callbacks = {name: one.state_dict() for name, one in callbacks.items()}
    if session.ranks.world > 1:  # else the checkpoint names what it cannot hold
        of_callbacks = session.peers.broadcast(of_callbacks, "the state of callbacks")
    return {
        **of_all,
        "models": [model.state_dict() for model in context.reducer.plain()],
        "other_buffers": [_other_buffers(model) for model in context.reducer.plain()],
        "optimizers": optimizers(context),
        "lr_schedulers": [one.state_dict() for one in context.lr_schedulers],
        "scaler": context.scaler.state_dict() if context.scaler is not None else None,
        "gradients": gradients,
        "callbacks": of_callbacks,
        "progress": progress,
    }


def private(
    context: PyTorchTrialContext,
    callbacks: Mapping[str, PyTorchCallback],
    gradients: Gradients | None,
) -> State:
    """State that each rank has for itself."""
    reducers = context.reducers.of(training=True)
    registered = context.core.session.registered.private()
    state = {
        "rng": rng.capture(context.core.session.registered.generators),
        "gradients": gradients,
        "training_metrics": context.division.tally.state(),
        "reducers": {name: state_of(one) for name, one in reducers.items()},
        "callbacks": {name: one.state_dict() for name, one in callbacks.items()},
        **({"registered": registered} if registered else {}),
    }
    compression = context.reducer.state()
    return state | {"compression": compression} if compression else state


def load_shared(context: PyTorchTrialContext, state: State, *, inherited: bool = False) -> None:
    """Put models, optimizers, schedulers and scaler back.

    Args:
        inherited: it is another trial's: options of optimizers and arguments of schedulers stay as
            this trial's code has made them (``inheriting``).

    Raises:
        Unrecoverable: the state is not of these models and optimizers.
        IntegrityError: it could not be put back, which may be the device's fault.
        ConfigError: a scheduler's schedule is shorter than what was trained already.
    """
    names = _names(context)
    try:
        for model, saved in zip(context.reducer.plain(), state["models"], strict=True):
            model.load_state_dict(_placed(model, saved))
        for model, others in zip(context.reducer.plain(), state["other_buffers"], strict=True):
            buffers.put_back(model, others)
        for optimizer, saved in zip(context.optimizers, state["optimizers"], strict=True):
            _load_optimizer(optimizer, saved, names, inherited)
        schedulers = list(zip(context.lr_schedulers, state["lr_schedulers"], strict=True))
        if inherited:
            warm_start.catch_up((one.scheduler, saved) for one, saved in schedulers)
        else:
            for scheduler, saved in schedulers:
                scheduler.load_state_dict(saved)
        if context.scaler is not None and state["scaler"] is not None:
            context.scaler.load_state_dict(state["scaler"])
    except (KeyError, ValueError, RuntimeError) as error:
        why = textwrap.shorten(str(error), 300, placeholder=" …")  # torch's has many lines
        if not _is_misfit(error):
            raise IntegrityError(
                f"the state could not be restored: {why}",
                where="checkpoint",
                hint="the trial is retried; if that fails too, check the device and its memory",
            ) from error
        raise Unrecoverable(
            f"the state does not fit this trial's models and optimizers: {why}",
            where="checkpoint",
            hint="has the code changed since it was saved?",
        ) from error


def _is_misfit(error: Exception) -> bool:
    """Whether a state is of something else: a device that fails raises ``RuntimeError``, too.

    Torch lists what fails while it copies a parameter among those that do not fit. A scaler that
    was switched off has left nothing to one that is on.
    """
    if not isinstance(error, RuntimeError):
        return True
    text = str(error)
    if "source state dict is empty" in text:
        return True
    return "Error(s) in loading state_dict" in text and "an exception occurred" not in text


def _placed(model: torch.nn.Module, saved: State) -> State:
    """A model's saved state in the form that the model has: whole, or this rank's rows."""
    placed = copy.copy(saved)  # torch keeps versions of modules in an attribute of it
    placed.update(fsdp2.place_all(saved, model.state_dict()))
    return placed


def load_gradients(context: PyTorchTrialContext, shared: State, private: State | None) -> None:
    """Put back gradients that wait for more batches. Old checkpoints have private ones only."""
    own = private["gradients"] if private is not None else {}
    accumulated.restore(parameters(context), shared.get("gradients", {}), own)


def load_callbacks(callbacks: Mapping[str, PyTorchCallback], saved: State) -> None:
    """Give callbacks their state back; one that the code has got since then begins anew."""
    for name, callback in callbacks.items():
        if name in saved:
            callback.load_state_dict(saved[name])


def load_private(
    context: PyTorchTrialContext, callbacks: Mapping[str, PyTorchCallback], state: State
) -> None:
    """Put back what this rank had for itself; random numbers last (``rng.restore``)."""
    for name, reducer in context.reducers.of(training=True).items():
        if name in state["reducers"]:
            load_state(reducer, state["reducers"][name])
    load_callbacks(callbacks, state["callbacks"])
    context.reducer.load(state.get("compression", []))
    context.division.tally.load(state["training_metrics"], context.device)


def _other_buffers(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Buffers that a model leaves out of its ``state_dict``, and that training may still change."""
    there = model.state_dict().keys()
    return {name: one for name, one in model.named_buffers() if name not in there}


def parameters(context: PyTorchTrialContext) -> dict[str, torch.nn.Parameter]:
    """All parameters by fully qualified name, the model's number in front."""
    context.reducer.settle()
    return {
        f"{number}.{name}": parameter
        for number, model in enumerate(context.reducer.plain())
        for name, parameter in model.named_parameters()
    }


def _names(context: PyTorchTrialContext) -> dict[int, str]:
    return {id(parameter): name for name, parameter in parameters(context).items()}


def optimizers(context: PyTorchTrialContext) -> list[State]:
    """The states of all optimizers, by name of parameter where torch has numbers."""
    names = _names(context)
    return [_optimizer(one, names) for one in context.optimizers]


def _optimizer(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> State:
    """An optimizer's state, by name of parameter where torch has numbers."""
    plain = optimizer.state_dict()
    ordered = _ordered(optimizer, names)
    return {
        "state": {ordered[index]: slots for index, slots in plain["state"].items()},
        "param_groups": [
            {**group, "params": [ordered[index] for index in group["params"]]}
            for group in plain["param_groups"]
        ],
    }


def _load_optimizer(
    optimizer: torch.optim.Optimizer, saved: State, names: Mapping[int, str], inherited: bool
) -> None:
    own = [one for group in optimizer.param_groups for one in group["params"]]
    index = {name: number for number, name in enumerate(_ordered(optimizer, names))}
    for group, wanted in zip(saved["param_groups"], optimizer.param_groups, strict=True):
        if strange := sorted(group.keys() - wanted.keys()):
            raise ValueError(f"{type(optimizer).__name__} has no {', '.join(strange)}")
    groups = saved["param_groups"]
    if inherited:
        groups = warm_start.options(optimizer, groups)
    optimizer.load_state_dict(
        {
            "state": {
                index[name]: {key: fsdp2.place(one, own[index[name]]) for key, one in slots.items()}
                for name, slots in saved["state"].items()
            },
            "param_groups": [
                {**group, "params": [index[name] for name in group["params"]]} for group in groups
            ],
        }
    )


def _ordered(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> list[str]:
    """Names of an optimizer's parameters, in torch's numbering.

    Raises:
        ConfigError: one belongs to no wrapped model: it would not be saved.
    """
    own = [one for group in optimizer.param_groups for one in group["params"]]
    for one in own:
        if id(one) not in names:
            raise ConfigError(
                f"a parameter of shape {list(one.shape)} is in no wrapped model",
                where=type(optimizer).__name__,
                hint="pass the model that holds it to context.wrap_model",
            )
    return [names[id(one)] for one in own]
