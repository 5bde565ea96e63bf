"""This worker's node, under a policy that requires capabilities of nodes."""

from __future__ import annotations

import os
import socket

from hpcdet.errors import HpcdetError
from hpcdet.jobs.script import requirements
from hpcdet.policy import statements
from hpcdet.policy.compiled import CompiledPolicy
from hpcdet.policy.statements import NodeDemand
from hpcdet.schedulers import opening
from hpcdet.schedulers.common.allocation import Allocation
from hpcdet.schedulers.common.request import NodeRequest
from hpcdet.site import Site
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.folder.layout import ExperimentPaths


class GovernedNode:
    """Whether the node may be used, by its statement and by what the scheduler shows of it.

    Attributes:
        name: the scheduler's name of it.

    Args:
        opened: the experiment's files, by its open folder.
    """

    def __init__(
        self, opened: ExperimentPaths, experiment: Resolved, site: Site, allocation: Allocation
    ) -> None:
        self._opened, self._experiment = opened, experiment
        self._site, self._allocation = site, allocation
        self._inside = opening.of(site).inside
        self.name = self._inside.node_name(os.environ)
        self._policy: CompiledPolicy | None = None
        self._listed: list[str] | None = None
        self._asked: NodeRequest | None = None
        self._shown: str | None = None
        self._free = False

    def refusal(self) -> str:
        """Return what speaks against claiming a trial here, for people; "" if nothing does.

        Raises:
            OSError: the storage is unavailable: nothing is known.
        """
        if self._free:
            return ""
        try:
            demand = self._read()
            if demand is None:
                return ""
            statements.verify(demand, self.name)
        except HpcdetError as error:
            return str(error)
        if self._shown is None:
            self._shown = self._against_the_scheduler()
        return self._shown

    def _read(self) -> NodeDemand | None:
        """Return what the policy demands; None, from now on, if it demands nothing of nodes."""
        policy = self._newest()
        self._asked = None if policy is None else requirements.of_policy(policy, self._site)
        self._free = self._asked is None
        return None if policy is None else statements.demand_of(policy, self._opened.site)

    def _newest(self) -> CompiledPolicy | None:
        """Return the policy, which is read anew only once the list of its changes is another one.

        To read it is to look into the ledgers of all trials.
        """
        try:
            listed = sorted(os.listdir(self._opened.policy_changes))
        except FileNotFoundError:
            listed = []
        if listed != self._listed:
            self._policy = requirements.on_nodes(self._experiment, self._opened)
            self._listed = listed
        return self._policy

    def _against_the_scheduler(self) -> str:
        """Return how the scheduler's view of the node differs; "" also where it has none."""
        name = self.name
        if name not in self._allocation.nodes:
            return f"G121: node {name} is none of this job's"
        shown = self._inside.shown_node(name)
        if shown is None:
            return ""
        host = socket.gethostname().partition(".")[0]
        if shown.host.partition(".")[0] != host:
            return f"G121: node {name} is host {shown.host} to the scheduler, and this is {host}"
        wanted = set(self._asked.features) if self._asked else set()
        if lacks := sorted(wanted - shown.features):
            return f"G121: the scheduler shows node {name} without {', '.join(lacks)}"
        return ""
