"""``backend.ScriptFace`` of PBS: chunks of hosts, and what policies require of these."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pydantic import Field, model_validator

from hpcdet.schedulers.common.request import ScriptRequest
from hpcdet.schedulers.pbs_family.host_requests import HostRequests, RequiredHosts
from hpcdet.schedulers.pbs_family.pbs_options import WorkerSize, mebibytes, resources
from hpcdet.schedulers.pbs_family.qsub_script import QsubScript
from hpcdet.site.models import Value

_RESOURCE = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_VALUE = re.compile(r"[A-Za-z0-9_.-]+")


class PbsHosts(RequiredHosts):
    """Requests to PBS by which a job runs where a capability is enforced."""

    select: dict[str, str | int | bool] = Field(
        default_factory=dict, description="resources that each host has: `{gov_phi: true}`"
    )

    @model_validator(mode="after")
    def _resources(self) -> PbsHosts:
        for name, value in self.select.items():
            if not _RESOURCE.fullmatch(name) or not _VALUE.fullmatch(str(value)):
                raise ValueError(f"select: {name}={value} is no resource of a host")
        return self

    def asked(self) -> Mapping[str, str]:
        """See ``RequiredHosts``."""
        return {name: f"{name}={value}" for name, value in self.select.items()}


def _size(request: ScriptRequest, size: WorkerSize) -> dict[str, Value]:
    """One chunk for each node of a worker."""
    chunk: dict[str, Value] = {
        "ncpus": size.cpus,
        "mpiprocs": size.ranks,
        "mem": mebibytes(size.memory),
        **size.chunk,
    }
    for name in request.view.skip:
        chunk.pop(name, None)
    scattered = "scatter" if request.nodes > 1 and not request.watches else None
    return {
        "select": ":".join([str(size.nodes), *resources(chunk)]),
        "place": request.view.place or scattered,
    }


SCRIPT = QsubScript(
    _size, HostRequests("PBS", PbsHosts, "pbs: {select: {RESOURCE: true}}", "select")
)
