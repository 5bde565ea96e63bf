"""The proof that a rank's node gives before anything of the user's is touched there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdet.policy import named_policy
from hpcdet.process.ranks import node_name
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.folder.layout import ExperimentPaths

if TYPE_CHECKING:  # most experiments have no policy
    from hpcdet.policy.statements import VerifiedNode


def require(experiment: ExperimentPaths, config: Resolved) -> VerifiedNode | None:
    """Verify this node where the experiment's policy requires capabilities of nodes.

    Every rank does, as none waits for another one before it imports the user's code.

    Returns:
        What it has proved; None where nothing is required.

    Raises:
        GovernanceBroken: G121: the node does not attest them; or the policy is gone or damaged,
            or the config has lost it.
        OSError: the policy cannot be read.
    """
    policy = named_policy.require(experiment, config)
    if policy is None:
        return None
    from hpcdet.policy import statements
    from hpcdet.policy.changes import policy_history

    policy = policy_history.on_nodes(policy, experiment, config.governance)
    demand = statements.demand_of(policy, experiment.site)
    return None if demand is None else statements.verify(demand, node_name())
