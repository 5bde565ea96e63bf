"""A policy's requirements of hosts as options of ``qsub``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hpcdet.policy.codes import PolicyRefused
from hpcdet.schedulers.common.request import NodeRequest
from hpcdet.site.governance import Name
from hpcdet.site.models import Value

_SET_BY_POLICY = ("partition", "account")
_OF_QSUB = {"partition": "queue"}
_RESOURCE = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_VALUE = re.compile(r"[A-Za-z0-9_.-]+")


class PbsHosts(BaseModel):
    """Requests to PBS by which a job runs where a capability is enforced."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    select: dict[str, str | int | bool] = Field(
        default_factory=dict, description="resources that each host has: `{gov_phi: true}`"
    )
    queue: Name | None = None
    account: Name | None = None

    @model_validator(mode="after")
    def _resources(self) -> PbsHosts:
        for name, value in self.select.items():
            if not _RESOURCE.fullmatch(name) or not _VALUE.fullmatch(str(value)):
                raise ValueError(f"select: {name}={value} is no resource of a host")
        return self


def read(given: Mapping[str, Any]) -> PbsHosts:
    """What a site file says of a capability. Raises ValueError, for people."""
    return PbsHosts.model_validate(dict(given))


def of_capabilities(
    names: Sequence[str], known: Mapping[str, Mapping[str, Any]], site: str
) -> NodeRequest:
    """What jobs ask for. Raises PolicyRefused as ``ScriptFace.node_request``."""
    asks: dict[str, PbsHosts] = {}
    for name in names:
        where = f"site {site}: governance.capabilities.{name}"
        try:
            asks[name] = read(known[name])
        except ValidationError as error:
            raise PolicyRefused("P17", "it cannot be read", where=where, hint=str(error)) from error
        if asks[name] == PbsHosts():
            raise PolicyRefused(
                "P17",
                f"site {site} does not say how PBS gives hosts with {name}",
                where=where,
                hint="pbs: {select: {RESOURCE: true}}, or a queue or account",
            )
    wanted: dict[str, dict[str, str]] = {}
    for name, asked in asks.items():
        settings = {"partition": asked.queue, "account": asked.account}
        for option, value in {**settings, **asked.select}.items():
            if value is not None:
                wanted.setdefault(option, {})[name] = str(value)
    agreed = {option: _agreed(option, by, site) for option, by in wanted.items()}
    resources = {name: value for name, value in agreed.items() if name not in _SET_BY_POLICY}
    return NodeRequest(
        tuple(names),
        tuple(f"{name}={value}" for name, value in sorted(resources.items())),
        {name: agreed[name] for name in _SET_BY_POLICY if name in agreed},
        resources,
    )


def _agreed(option: str, by: Mapping[str, str], site: str) -> str:
    """Return the one value that all capabilities want of an option."""
    if len(set(by.values())) > 1:
        each = ", ".join(f"{name}: {value}" for name, value in by.items())
        raise PolicyRefused(
            "P17",
            f"a job has one {option}, and capabilities want several ({each})",
            where=f"site {site}: governance.capabilities",
            hint="require fewer capabilities, or ask the site for a common one",
        )
    return next(iter(by.values()))


def added(
    values: Mapping[str, Value], asked: Mapping[str, Value], request: NodeRequest
) -> dict[str, Value]:
    """Return options of ``qsub`` with what a policy requires.

    Args:
        values: all options so far: hpcdet's, the site's, the user's.
        asked: of these the user's own, whose queue and account are not replaced silently.

    Raises:
        PolicyRefused: P17: the user asks for something that would undo it.
    """
    settings = {_OF_QSUB.get(name, name): value for name, value in request.settings.items()}
    for option, value in settings.items():
        if asked.get(option) not in (None, value):
            raise PolicyRefused(
                "P17",
                f"{option} {asked[option]} would undo {option} {value}, which the policy requires "
                f"for {', '.join(request.capabilities)}",
                where="pbs.pbsbatch_args",
                hint="leave it out: hpcdet asks for it",
            )
    found = {**values, **settings}
    if "select" in values:
        more = [f"{name}={value}" for name, value in request.resources.items()]
        found["select"] = ":".join([str(values["select"]), *more])
    return found
