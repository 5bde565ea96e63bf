"""``context.governance``: training under the experiment's policy, for loops of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hpcdet.train.attempt.session import Session

if TYPE_CHECKING:  # imported where there is a policy only
    from hpcdet.guard.guard import Guard
    from hpcdet.guard.state import GovernanceState


class GovernanceContext:
    """The policy of the experiment, if it has one.

    Attributes:
        guard: what enforces it on this rank; None without a policy.
        accounts: what of it outlives this attempt; None without a policy.
    """

    guard: Guard | None = None
    accounts: GovernanceState | None = None

    def __init__(self, session: Session) -> None:
        experiment = session.place.experiment
        if experiment is not None and experiment.compiled_policy.exists():
            self._begin(session, experiment.compiled_policy)

    def _begin(self, session: Session, path: Path) -> None:
        from hpcdet.guard.guard import Guard
        from hpcdet.guard.state import GovernanceState
        from hpcdet.policy.compiled import CompiledPolicy
        from hpcdet.store.fs import files

        text = files.read(path, LARGEST).decode()
        policy = CompiledPolicy.from_json(text, str(path))
        self.guard = Guard(policy, session.device, session.peers.allgather)
        self.accounts = GovernanceState(self.guard)

    @property
    def governed(self) -> bool:
        """True if the experiment has a policy."""
        return self.guard is not None


LARGEST = 16 << 20
"""Bytes of a compiled policy."""
