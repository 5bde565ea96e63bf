"""All ranks have loaded the same governance state, and are under the same policy: check 7."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hpcdet.guard.accounts.checkpoint_records import state_root
from hpcdet.guard.resume.resume_verdicts import Check, State, broken


def same_on_ranks(policy: str, state: State, gather: Callable[[Any], Sequence[Any]]) -> list[Check]:
    """All ranks say the same; they call together.

    Args:
        policy: digest of the policy in effect on this rank; ``state``: what it has loaded.

    Raises:
        GovernanceBroken: G107, on all ranks.
    """
    everyone = gather([policy, state_root(state)])
    other = next((rank for rank, said in enumerate(everyone) if said != everyone[0]), None)
    if other is not None:
        which = "policy" if everyone[other][0] != everyone[0][0] else "governance state"
        raise broken(
            "G107",
            f"rank {other} has another {which} than rank 0",
            hint="all ranks read the same files: look for code that changes the state as it is "
            "loaded, and for copies of the experiment on single nodes",
        )
    return [Check(7, "G107", "passed", f"{len(everyone)} ranks")]
