"""A policy's requirements of hosts as options of ``qsub``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from hpcdet.policy.codes import PolicyRefused
from hpcdet.schedulers.common.request import NodeRequest
from hpcdet.site.governance import Name
from hpcdet.site.models import Value

_SET_BY_POLICY = ("partition", "account")
_OF_QSUB = {"partition": "queue"}


class RequiredHosts(BaseModel, ABC):
    """Requests by which a job runs where a capability is enforced."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    queue: Name | None = None
    account: Name | None = None

    @abstractmethod
    def asked(self) -> Mapping[str, str]:
        """What each host has, by its name: the text that asks for it, and that hosts show."""


class HostRequests:
    """Requirements of hosts.

    Args:
        scheduler: for people.
        model: what a site file says of a capability.
        example: a mapping that says it, for people.
        chunk: the option whose value says what hosts have, after colons.
    """

    def __init__(
        self, scheduler: str, model: type[RequiredHosts], example: str, chunk: str
    ) -> None:
        self._scheduler, self._model, self._example = scheduler, model, example
        self._chunk = chunk

    def read(self, given: Mapping[str, Any]) -> RequiredHosts:
        """What a site file says of a capability. Raises ValueError, for people."""
        return self._model.model_validate(dict(given))

    def of_capabilities(
        self, names: Sequence[str], known: Mapping[str, Mapping[str, Any]], site: str
    ) -> NodeRequest:
        """What jobs ask for. Raises PolicyRefused as ``ScriptFace.node_request``."""
        wanted: dict[str, dict[str, str]] = {}
        for name in names:
            asked = self._of(name, known[name], site)
            settings = {"partition": asked.queue, "account": asked.account}
            for option, value in {**settings, **asked.asked()}.items():
                if value is not None:
                    wanted.setdefault(option, {})[name] = value
        agreed = {option: _agreed(option, by, site) for option, by in wanted.items()}
        return NodeRequest(
            tuple(names),
            tuple(sorted(text for name, text in agreed.items() if name not in _SET_BY_POLICY)),
            {name: agreed[name] for name in _SET_BY_POLICY if name in agreed},
        )

    def _of(self, name: str, given: Mapping[str, Any], site: str) -> RequiredHosts:
        where = f"site {site}: governance.capabilities.{name}"
        try:
            asked = self.read(given)
        except ValidationError as error:
            raise PolicyRefused("P17", "it cannot be read", where=where, hint=str(error)) from error
        if asked == self._model():
            raise PolicyRefused(
                "P17",
                f"site {site} does not say how {self._scheduler} gives hosts with {name}",
                where=where,
                hint=f"{self._example}, or a queue or account",
            )
        return asked

    def added(
        self, values: Mapping[str, Value], asked: Mapping[str, Value], request: NodeRequest
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
                    f"{option} {asked[option]} would undo {option} {value}, which the policy "
                    f"requires for {', '.join(request.capabilities)}",
                    where="pbs.pbsbatch_args",
                    hint="leave it out: hpcdet asks for it",
                )
        found = {**values, **settings}
        if self._chunk in values:
            found[self._chunk] = ":".join([str(values[self._chunk]), *request.features])
        return found


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
