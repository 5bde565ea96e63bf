"""``context.governance``: training under the experiment's policy, for loops of one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
        if session.config.governance is not None:
            self._begin(session, session.config.governance.digest)

    def _begin(self, session: Session, digest: str) -> None:
        """Take up the policy that the config names by its digest."""
        from hpcdet.guard.guard import Guard
        from hpcdet.guard.state import GovernanceState
        from hpcdet.policy.codes import GovernanceBroken
        from hpcdet.policy.compiled import CompiledPolicy

        experiment = session.place.experiment
        assert experiment is not None  # where a script runs alone its config has all defaults
        policy = CompiledPolicy.load(experiment.compiled_policy)
        if policy.digest != digest:
            raise GovernanceBroken(
                "G110",
                "it is not the policy that the experiment's config names",
                where=str(experiment.compiled_policy),
                hint="put it back from a backup, or fork the experiment",
            )
        self.guard = Guard(policy, session.device, session.peers.allgather)
        self.state = GovernanceState(self.guard)
