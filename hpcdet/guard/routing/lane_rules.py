"""Lanes of a model against those of a policy: who may change one, and whose rows it computes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from torch import nn

from hpcdet.data.source_lanes import KnownRows, Lane
from hpcdet.guard.routing.layer_map import GovernedParameter, LayerMap
from hpcdet.policy.codes import PolicyRefused
from hpcdet.policy.compiled import CompiledPolicy


def join(model: nn.Module, layers: LayerMap, policy: CompiledPolicy, known: KnownRows) -> None:
    """Let the lanes of a model know whose rows are under way.

    Raises:
        PolicyRefused: a layer that is a lane of the policy is used by other rows than those of the
            sources that may change it (P11).
    """
    lanes = {name: one for name, one in model.named_modules() if isinstance(one, Lane)}
    for one in lanes.values():
        one.attach(known)
    learners = _learners(policy)
    for parameter in layers.parameters:
        for layer in _lanes_of(parameter, layers, policy):
            _check(parameter, layer, lanes, learners[layer], policy)


def _learners(policy: CompiledPolicy) -> dict[str, set[str]]:
    """By layer the sources that may change it."""
    return {
        layer.id: {
            source.id
            for source, row in zip(policy.sources, policy.matrix, strict=True)
            if row[place] > 0
        }
        for place, layer in enumerate(policy.layers)
    }


def _lanes_of(
    parameter: GovernedParameter, layers: LayerMap, policy: CompiledPolicy
) -> Iterator[str]:
    for place in layers.groups[parameter.layer]:
        if policy.layers[place].lane:
            yield policy.layers[place].id


def _check(
    parameter: GovernedParameter,
    layer: str,
    lanes: Mapping[str, Lane],
    learners: Set[str],
    policy: CompiledPolicy,
) -> None:
    for name in parameter.names:
        around = [one for at, one in lanes.items() if name.startswith(f"{at}." if at else "")]
        if not around:
            raise PolicyRefused(
                "P11",
                f"{name} is in the lane {layer!r}, and every row of a batch uses it",
                where="model",
                hint=f"put its module into pytorch.Lane(module, source={_names(learners)})",
            )
        users = {one.id for one in policy.sources}.intersection(*(one.sources for one in around))
        if learners and users - learners:
            raise PolicyRefused(
                "P11",
                f"rows of {_names(users - learners)} use the lane {layer!r} by {name}, which only "
                f"{_names(learners)} may change",
                where="model",
                hint=f"name only the latter: pytorch.Lane(module, source={_names(learners)})",
            )
        if learners - users:
            raise PolicyRefused(
                "P11",
                f"{_names(learners - users)} may change the lane {layer!r}, and {name} is off for "
                "its rows",
                where="model",
                hint="name it in pytorch.Lane(module, source=...), or deny it the layer",
            )


def _names(sources: Set[str]) -> str:
    return ", ".join(repr(one) for one in sorted(sources)) or "..."


# -- what isolation cannot be shown for -----------------------------------------------------


def refuse_scaler(policy: CompiledPolicy) -> None:
    """Refuse a scaler of gradients: an overflow in a lane skips the step of the trunk.

    Raises:
        PolicyRefused: the policy wants isolation (P11).
    """
    if policy.assurance == "isolated":
        raise PolicyRefused(
            "P11",
            "a scaler of gradients skips the trunk's step where a lane's gradient overflows",
            where="wrap_scaler",
            hint="train in bfloat16, which needs no scaler",
        )


def refuse_unproven(policy: CompiledPolicy, why: str, where: str, hint: str) -> None:
    """Refuse training whose rows no probe can follow.

    Raises:
        PolicyRefused: the policy wants isolation (P11).
    """
    if policy.assurance == "isolated":
        what = f"isolation cannot be shown: {why}"
        raise PolicyRefused("P11", what, where=where, hint=hint)
