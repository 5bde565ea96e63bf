"""The policy that an attempt trains under: the newest one, without sources that have ended."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcdet.policy.changes.policy_history import PolicyHistory
from hpcdet.policy.codes import GovernanceBroken
from hpcdet.policy.compiled import CompiledPolicy, DataSource


@dataclass(frozen=True)
class PolicyInEffect:
    """A policy, and how it came to be the one.

    Attributes:
        policy: what the guard enforces.
        history: the policies that were in effect before it, the submitted one first, each without
            what had ended by itself; the newest last.
        dropped: sources that the newest one has and ``policy`` denies everywhere, with the reason.
        acts: changes, in order, as ``{"number", "act", "kind", "by", "reason", ...}``.
        at: when it was decided, ISO 8601, and never before what was recorded; "": not known.
    """

    policy: CompiledPolicy
    history: tuple[CompiledPolicy, ...]
    dropped: Mapping[str, str] = field(default_factory=dict)
    acts: tuple[Mapping[str, Any], ...] = ()
    at: str = ""

    @property
    def ended(self) -> set[str]:
        """Sources of the submitted policy that may change nothing any more."""
        first = {
            one.id
            for one, row in zip(self.history[0].sources, self.history[0].matrix, strict=True)
            if any(row)
        }
        now = zip(self.policy.sources, self.policy.matrix, strict=True)
        return {one.id for one, row in now if one.id in first and not any(row)}

    @staticmethod
    def of(policy: CompiledPolicy) -> PolicyInEffect:
        """A policy that was never changed."""
        return PolicyInEffect(policy, (policy,))

    def encode(self) -> dict[str, Any]:
        """Plain data, for other ranks."""
        return {
            "policy": self.policy.to_json(),
            "history": [one.to_json() for one in self.history],
            "dropped": dict(self.dropped),
            "acts": [dict(one) for one in self.acts],
            "at": self.at,
        }

    @staticmethod
    def decode(told: Mapping[str, Any]) -> PolicyInEffect:
        """The inverse of ``encode``."""
        return PolicyInEffect(
            CompiledPolicy.from_json(told["policy"]),
            tuple(CompiledPolicy.from_json(one) for one in told["history"]),
            dict(told["dropped"]),
            tuple(told["acts"]),
            told["at"],
        )

    def place(self, policy: CompiledPolicy, dropped: Mapping[str, str]) -> int | None:
        """Where a policy stands in the history, the newest such place; None: nowhere.

        Args:
            dropped: what it denied of the one that stands there.
        """
        for number in reversed(range(len(self.history))):
            if self.history[number].denying(dropped.keys()).digest == policy.digest:
                return number
        return None

    def since(self, made: int, dropped: Mapping[str, str]) -> list[Mapping[str, Any]]:
        """Return the changes since: later ``acts``, and sources that have ended by themselves.

        Args:
            made: how many acts there were; ``dropped``: what had ended.
        """
        ended = [(name, why) for name, why in self.dropped.items() if name not in dropped]
        drops = ({"act": "drop", "source": name, "reason": why} for name, why in ended)
        return [*self.acts[made:], *drops]

    def overriding(self, trial: int, made: int, step: int) -> dict[str, Mapping[str, Any]]:
        """The act that overrides each check at a resume, by G code; the newest one counts.

        Args:
            trial: the one that goes on.
            made: how many acts there were when its checkpoint was made.
            step: of the checkpoint.
        """
        return {
            act["code"]: act
            for act in self.overrides(trial)
            if act["number"] > made or step <= act["until"]
        }

    def overrides(self, trial: int) -> list[Mapping[str, Any]]:
        """The acts that override checks of a trial, whichever its checkpoint is."""
        of_all = (0, trial)
        return [one for one in self.acts if one["act"] == "override" and one["trial"] in of_all]


def in_effect(
    history: PolicyHistory, today: datetime.date, withdrawn: Mapping[str, str] | None = None
) -> PolicyInEffect:
    """Return the policy that an attempt has to train under.

    Args:
        today: agreements that ended before count no more.
        withdrawn: sources that their owners have withdrawn, with the reason.

    Raises:
        GovernanceBroken: G112: a source has ended and the policy says to stop, or none is left.
    """
    newest = history.newest
    dropped = {
        one.id: why
        for one, row in zip(newest.sources, newest.matrix, strict=True)
        if any(row) and (why := (withdrawn or {}).get(one.id) or ended(one, today))
    }
    if dropped and newest.changes.revoke == "stop":
        source, why = next(iter(dropped.items()))
        raise GovernanceBroken(
            "G112",
            f"{why}, and the policy says to stop then",
            where=f"source {source}",
            hint="change the policy (hpcdet policy change): without the source, or with a new "
            "agreement",
        )
    policy = newest.denying(dropped.keys())
    if dropped and not any(any(row) for row in policy.matrix):
        raise GovernanceBroken(
            "G112",
            f"no source is left: {'; '.join(dropped.values())}",
            where="policy.json",
            hint="change the policy (hpcdet policy change): with a new agreement",
        )
    acts = tuple(
        {
            "number": one.number,
            "act": one.act,
            "kind": one.kind,
            "by": one.by,
            "reason": one.reason,
            "source": one.source,
            "code": one.code,
            "trial": one.trial,
            "until": one.until,
            "before": one.before,
            "after": one.after,
            "digest": digest,
        }
        for one, digest in zip(history.changes, history.digests, strict=True)
    )
    return PolicyInEffect(policy, history.policies, dropped, acts)


def ended(source: DataSource, today: datetime.date) -> str:
    """Why a source may be used no more on this day; "" if it may."""
    agreed = source.agreement
    if agreed is None or not agreed.expires:
        return ""
    if datetime.date.fromisoformat(agreed.expires) >= today:
        return ""
    return f"the agreement {agreed.id} on source {source.id} ended on {agreed.expires}"
