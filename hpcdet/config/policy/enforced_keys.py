"""The keys of a policy that this version reads and does not enforce."""

from __future__ import annotations

from collections.abc import Iterator

from hpcdet.policy.codes import PolicyRefused
from hpcdet.policy.compiled import CompiledPolicy


def refuse_unenforced(policy: CompiledPolicy) -> None:
    """Refuse a policy that asks for what nothing enforces.

    Raises:
        PolicyRefused: P01: it does.
    """
    missing = list(_unenforced(policy))
    if missing:
        raise PolicyRefused(
            "P01",
            f"the policy asks for what this version does not enforce: {'; '.join(missing)}",
            where="governance.policy",
            hint="a policy that is written down and not enforced is worse than none: leave it out",
        )


def _unenforced(policy: CompiledPolicy) -> Iterator[str]:
    """Yield the keys of a policy that are read and compiled, and that nothing enforces yet."""
    memory = policy.memorization
    if memory is not None and not memory.tested:
        yield "memorization without twins and canaries"
