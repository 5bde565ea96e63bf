"""``context.governance``: training under the experiment's policy, for loops of one's own."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import torch

from hpcdet.store.config.resolved_config import Governance
from hpcdet.train.attempt.session import Session

if TYPE_CHECKING:  # imported where there is a policy only
    from hpcdet.guard.guard import Guard
    from hpcdet.guard.state import GovernanceState


class GovernanceContext:
    """The policy of the experiment, if it has one.

    Attributes:
        guard: what enforces it on this rank; None without a policy.
        state: what of it outlives this attempt; None without a policy.
    """

    guard: Guard | None = None
    state: GovernanceState | None = None

    def __init__(self, session: Session) -> None:
        self._session = session
        if session.config.governance is not None:
            self._begin(session, session.config.governance)

    def _begin(self, session: Session, named: Governance) -> None:
        """Take up the policy that the config names by its digest."""
        from hpcdet.guard.guard import Guard
        from hpcdet.guard.state import GovernanceState
        from hpcdet.policy import experiment_policy

        experiment = session.place.experiment
        assert experiment is not None  # where a script runs alone its config has all defaults
        policy = experiment_policy.load(experiment, named)
        experiment_policy.refuse_expired(policy, datetime.datetime.now(datetime.UTC).date())
        self.guard = Guard(policy, session.device, session.peers.allgather)
        self.state = GovernanceState(self.guard)

    def take(self, model: torch.nn.Module) -> None:
        """Route the gradients of a model that learns; nothing without a policy.

        Raises:
            PolicyRefused: its parameters are not each in one layer, or it cannot be routed.
        """
        if self.guard is not None:
            self.guard.take(model)
            self._session.governed = True

    def metrics(self) -> dict[str, float]:
        """Return the metrics of governance, ``gov.…``; none without a policy."""
        return {} if self.state is None else self.state.metrics()
