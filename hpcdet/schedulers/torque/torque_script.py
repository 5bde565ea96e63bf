"""``backend.ScriptFace`` of Torque: ``nodes=N:ppn=P``, and properties of nodes."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from hpcdet.schedulers.common.request import ScriptRequest
from hpcdet.schedulers.pbs_family.host_requests import HostRequests, RequiredHosts
from hpcdet.schedulers.pbs_family.pbs_options import WorkerSize, mebibytes, resources
from hpcdet.schedulers.pbs_family.qsub_script import QsubScript
from hpcdet.schedulers.torque import torque_names
from hpcdet.site.governance import Name
from hpcdet.site.models import Value


class TorqueHosts(RequiredHosts):
    """Requests to Torque by which a job runs where a capability is enforced."""

    properties: tuple[Name, ...] = Field(default=(), description="of each node: `[gov_phi]`")

    def asked(self) -> Mapping[str, str]:
        """See ``RequiredHosts``."""
        return {name: name for name in self.properties}


def _size(request: ScriptRequest, size: WorkerSize) -> dict[str, Value]:
    """Nodes with so many processors each; what the site adds is a property, or has a number."""
    asked = [text.removesuffix("=True") for text in resources(size.chunk)]
    found: dict[str, Value] = {
        "name": torque_names.of_job(request.name),
        "nodes": ":".join([str(size.nodes), f"ppn={size.cpus}", *asked]),
    }
    if size.nodes == 1:
        found["mem"] = mebibytes(size.memory)
    elif size.memory is not None:
        # mem is ignored where a job has several nodes; pmem is of one process
        found["pmem"] = mebibytes(size.memory // size.cpus)
    if request.watches:
        # it looks what is to be done: one that waited for a bad end only might wait for ever
        found["depend"] = f"afterany:{request.watches}"
    return found


SCRIPT = QsubScript(
    _size, HostRequests("Torque", TorqueHosts, "torque: {properties: [PROPERTY]}", "nodes")
)
