"""A policy's requirements of nodes as options of ``sbatch``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hpcdet.policy.codes import PolicyRefused
from hpcdet.schedulers.common.request import NodeRequest
from hpcdet.site.governance import FEATURES, Name
from hpcdet.site.models import Value

_SET_BY_POLICY = ("partition", "account", "qos")
_ELSEWHERE = ("clusters", "cluster-constraint")
"""Options that send a job to another cluster, whose features mean something else."""
_ADDABLE = re.compile(r"[A-Za-z0-9_.:/=-]+(?:[&|][A-Za-z0-9_.:/=-]+)*")
"""Constraints of users that mean the same beside another: no counts, brackets or parentheses.
``a*1&b`` gives nodes without ``b`` (Slurm 22.05), and parentheses cannot be nested."""


class SlurmNodes(BaseModel):
    """Requests to Slurm by which a job runs where a capability is enforced."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    constraint: str | None = Field(
        default=None, description="features of nodes, all wanted: `gov_phi` or `gov_phi&gov_net`"
    )
    partition: Name | None = None
    account: Name | None = None
    qos: Name | None = None

    @model_validator(mode="after")
    def _features(self) -> SlurmNodes:
        if self.constraint is not None and not FEATURES.fullmatch(self.constraint):
            raise ValueError("constraint: write names of features, joined by &, and nothing else")
        return self


def read(given: Mapping[str, Any]) -> SlurmNodes:
    """What a site file says of a capability. Raises ValueError, for people."""
    known = list(SlurmNodes.model_fields)
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
            raise ValueError(f"unknown key {name!r}; {hint}")
    try:
        return SlurmNodes.model_validate(dict(given))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{key}: {first['msg']}" if key else first["msg"]) from error


def of_capabilities(
    names: Sequence[str], known: Mapping[str, Mapping[str, Any]], site: str
) -> NodeRequest:
    """What jobs ask for. Raises PolicyRefused as ``ScriptFace.node_request``."""
    asks: dict[str, SlurmNodes] = {}
    for name in names:
        try:
            asks[name] = read(known[name])
        except ValueError as error:
            where = f"site {site}: governance.capabilities.{name}"
            raise PolicyRefused("P17", "it cannot be read", where=where, hint=str(error)) from error
        if asks[name] == SlurmNodes():
            raise PolicyRefused(
                "P17",
                f"site {site} does not say how Slurm gives nodes with {name}",
                where=f"site {site}: governance.capabilities.{name}",
                hint="slurm: {constraint: FEATURE}, or a partition, account or qos",
            )
    features = [one for asked in asks.values() for one in (asked.constraint or "").split("&")]
    settings = {option: _agreed(option, asks, site) for option in _SET_BY_POLICY}
    return NodeRequest(
        tuple(names),
        tuple(dict.fromkeys(filter(None, features))),
        {option: value for option, value in settings.items() if value is not None},
    )


def _agreed(option: str, asks: Mapping[str, SlurmNodes], site: str) -> str | None:
    """Return the one value that all capabilities want of an option; None if none wants any."""
    wanted = {value: name for name, one in asks.items() if (value := getattr(one, option))}
    if len(wanted) > 1:
        each = ", ".join(f"{name}: {value}" for value, name in wanted.items())
        raise PolicyRefused(
            "P17",
            f"a job has one {option}, and capabilities want several ({each})",
            where=f"site {site}: governance.capabilities",
            hint="require fewer capabilities, or ask the site for a common one",
        )
    return next(iter(wanted), None)


def added(
    values: Mapping[str, Value], asked: Mapping[str, Value], request: NodeRequest
) -> dict[str, Value]:
    """Return options of ``sbatch`` with what a policy requires.

    Args:
        values: all options so far: hpcdet's, the site's, the user's.
        asked: of these the user's own, whose partition, account and qos are not replaced silently.

    Raises:
        PolicyRefused: P17: the user asks for something that would undo it.
    """
    for option, value in request.settings.items():
        if asked.get(option) not in (None, value):
            raise _undone(f"--{option}={asked[option]}", f"--{option}={value}", request)
    for option in _ELSEWHERE:
        if values.get(option) is not None:
            raise _undone(f"--{option}={values[option]}", "this cluster", request)
    found = {**values, **request.settings}
    if request.features:
        found["constraint"] = _constraint(values.get("constraint"), request)
    return found


def _constraint(given: Value, request: NodeRequest) -> str:
    needed = "&".join(request.features)
    if given is None or given is False:
        return needed
    text = str(given)
    if given is True or not _ADDABLE.fullmatch(text):
        raise PolicyRefused(
            "P17",
            f"--constraint={text} cannot be joined with {needed}",
            where="slurm.sbatch_args",
            hint="write names of features joined by & or |; counts and brackets would let Slurm "
            "choose nodes without them",
        )
    return f"({text})&{needed}"


def _undone(given: str, wanted: str, request: NodeRequest) -> PolicyRefused:
    names = ", ".join(request.capabilities)
    return PolicyRefused(
        "P17",
        f"{given} would take jobs away from where {names} is enforced: {wanted}",
        where="slurm.sbatch_args, resources.resource_pool",
        hint="leave it out: the policy sets it",
    )
