"""The proof that a rank's node gives before anything of the user's is touched there."""

from __future__ import annotations

from hpcdet.policy import named_policy
from hpcdet.process.ranks import node_name
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.folder.layout import ExperimentPaths


def require(experiment: ExperimentPaths, config: Resolved) -> None:
    """Verify this node where the experiment's policy requires capabilities of nodes.

    Every rank does, as none waits for another one before it imports the user's code.

    Raises:
        GovernanceBroken: G121: the node does not attest them; or the policy is gone or damaged,
            or the config has lost it.
        OSError: the policy cannot be read.
    """
    policy = named_policy.require(experiment, config)
    if policy is None:
        return
    from hpcdet.policy import statements  # most experiments have no policy
    from hpcdet.policy.changes import policy_history

    policy = policy_history.on_nodes(policy, experiment, config.governance)
    demand = statements.demand_of(policy, experiment.site)
    if demand is not None:
        statements.verify(demand, node_name())
