"""The policies that a trial was trained under, as its ledgers name them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from hpcdet.policy.changes.policy_history import PolicyHistory
from hpcdet.policy.changes.strictness import kind_between
from hpcdet.policy.compiled import Assurance, CompiledPolicy
from hpcdet.policy.ledger.records import AttemptLedger


@dataclass(frozen=True)
class TrialPolicyChangeView:
    """A signed record of what was changed under the policy, as a trial obeyed it."""

    number: int
    """Its number, from 1: ``policies/0001.json``."""
    act: str
    """``change``, ``revoke`` or ``override``."""
    kind: str
    """``tighten``, ``loosen``, ``mixed`` or ``same``: what it did to what is allowed."""
    source: str
    """Of ``revoke``, the source."""
    code: str
    """Of ``override``, the check."""
    policy_digest: str
    """Digest of the policy after it."""
    by: str
    """Login name of who made it, by his machine."""
    time: str
    """When, by his machine."""
    reason: str
    """Why, as it was given."""
    attempt: int
    """The first attempt of the trial that it counted for; 0: none yet."""


class TrainedPolicies:
    """The policies of an experiment, by the attempts of a trial that were under them."""

    def __init__(self, history: PolicyHistory, ledgers: Sequence[AttemptLedger]) -> None:
        self._history, self._ledgers = history, ledgers
        self._said: dict[int, tuple[str, set[str]]] = {}
        for ledger in ledgers:
            for record in ledger.records:
                if record.type == "policy":
                    digest = str(record.body.get("digest"))
                    self._said[ledger.attempt] = digest, _denied(record.body)
        self._known = {one.digest: one for one in history.policies}
        for digest, denied in self._said.values():
            if digest not in self._known:  # sources that had ended by themselves
                found = (one.denying(denied) for one in reversed(history.policies))
                self._known |= {one.digest: one for one in found if one.digest == digest}

    def of_digest(self, digest: str) -> CompiledPolicy | None:
        """The policy of a digest; None: it never was the experiment's."""
        return self._known.get(digest)

    def of_attempt(self, number: int) -> CompiledPolicy:
        """The policy that an attempt was under; of one without a ledger, that of the one before."""
        before = [said for at, (said, _) in sorted(self._said.items()) if at <= number]
        known = [one for said in before if (one := self._known.get(said)) is not None]
        return known[-1] if known else self._history.policies[0]

    @property
    def last(self) -> CompiledPolicy:
        """The policy of the newest attempt; before the first one, what that will be under."""
        return self.of_attempt(max(self._said)) if self._said else self._history.newest

    def assurance(self, at: CompiledPolicy, attempt: int) -> Assurance:
        """The least that holds of a checkpoint: what was trained under less stays in its weights.

        Args:
            at: the policy that it was saved under; ``attempt``: by which.
        """
        trained = (
            one.attempt
            for one in self._ledgers
            if one.attempt <= attempt and any(record.type == "step_batch" for record in one.records)
        )
        under = [at.assurance, *(self.of_attempt(one).assurance for one in trained)]
        return min(under, key=get_args(Assurance).index)

    def changes(self, trial: int) -> list[TrialPolicyChangeView]:
        """The records of what was changed, in order; overrides of other trials are left out."""
        policies = self._history.policies
        return [
            TrialPolicyChangeView(
                number=one.number,
                act=one.act,
                kind=kind_between(policies[one.number - 1], policies[one.number]),
                source=one.source,
                code=one.code,
                policy_digest=one.after,
                by=one.by,
                time=one.time,
                reason=one.reason,
                attempt=self._first_under(one.number),
            )
            for one in self._history.changes
            if one.act != "override" or one.trial in (0, trial)
        ]

    def _first_under(self, change: int) -> int:
        acts = (
            (ledger.attempt, one.body.get("number"))
            for ledger in self._ledgers
            for one in ledger.records
            if one.type in ("policy_change", "revoke")
        )
        return next((attempt for attempt, number in acts if number == change), 0)


def _denied(body: Mapping[str, Any]) -> set[str]:
    """The sources that a ``policy`` record lets change nothing."""
    try:
        rows = zip(body["sources"], body["weights"], strict=True)
        return {str(name) for name, row in rows if not any(map(float.fromhex, row))}
    except (KeyError, TypeError, ValueError):
        return set()
