"""Layers that nothing may change hold what they held at the beginning: check 15."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch

from hpcdet.guard.guard import Guard
from hpcdet.guard.resume.resume_verdicts import Check, broken
from hpcdet.policy.compiled import CompiledPolicy

Models = Mapping[str, torch.nn.Parameter]
"""Parameters by number of their model and name."""
Digests = dict[str, str]
"""SHA-256 of parameters, by name."""
_MOMENTS = (
    *("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer", "square_avg"),
    *("grad_avg", "acc_delta", "row_var", "col_var", "variance", "prev"),
)
"""What torch's optimizers keep of gradients, and have not before the first one."""
_SUM, _FIRST_SUM = "sum", "initial_accumulator_value"
"""Adagrad's, and the option that says what it is before the first one."""


def digests(guard: Guard, parameters: Models, policy: CompiledPolicy | None = None) -> Digests:
    """Digests of the parameters of layers that a policy, the guard's, lets nothing change."""
    weights = (policy or guard.policy).weights()
    found: Digests = {}
    for number, layer_map in enumerate(guard.models.maps):
        closed = (layer_map.weights(weights) == 0).all(axis=0).tolist()
        for one in layer_map.parameters:
            name = f"{number}.{one.name}"
            if closed[one.layer] and name in parameters:
                found[name] = _digest(parameters[name])
    return found


def unchanged(known: Digests, now: Digests) -> list[Check]:
    """Nothing has changed of what was known at the beginning.

    Raises:
        GovernanceBroken: G115.
    """
    changed = sorted(name for name in known if name in now and now[name] != known[name])
    if changed:
        raise broken(
            "G115",
            f"nothing may change {changed[0]}, and it is not what it was at the beginning",
            hint="a gradient has leaked, or the checkpoint was changed: begin again from one "
            "that `hpcdet ledger verify` accepts",
        )
    return [Check(15, "G115", "passed", f"{len(known)} parameters")]


def without_moments(guard: Guard, known: Digests, parameters: Models) -> None:
    """Optimizers hold no moment of these parameters that is not 0: none has had a gradient.

    Raises:
        GovernanceBroken: G115.
    """
    for name in sorted(known.keys() & parameters.keys()):
        for optimizer in guard.optimizers.watched:
            slots = optimizer.state.get(parameters[name], {})
            for slot, rest in {**dict.fromkeys(_MOMENTS, 0), **_sums(optimizer)}.items():
                held = slots.get(slot)
                if not isinstance(held, torch.Tensor) or bool((held == rest).all()):
                    continue
                raise broken(
                    "G115",
                    f"nothing may change {name}, and its optimizer has a {slot} that is not {rest}",
                    hint="a gradient has leaked, or the checkpoint was changed: begin again from "
                    "one that `hpcdet ledger verify` accepts",
                )


def _sums(optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """Return what Adagrad's sum is before the first gradient; {} of other optimizers.

    All groups have the same, also where the code says another one by now: that of the checkpoint.
    """
    known = optimizer.param_groups[0]
    return {_SUM: known[_FIRST_SUM]} if _FIRST_SUM in known else {}


def _digest(parameter: torch.Tensor) -> str:
    whole: Any = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
    values = whole.detach().cpu().contiguous().flatten().view(torch.uint8)
    return hashlib.sha256(values.numpy().tobytes()).hexdigest()
