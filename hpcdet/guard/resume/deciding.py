"""The policy that an attempt trains under: rank 0 decides, and all others train under the same."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

from hpcdet.errors import HpcdetError
from hpcdet.policy.changes import policy_history
from hpcdet.policy.changes.policy_in_effect import PolicyInEffect, in_effect
from hpcdet.policy.codes import GovernanceBroken, PolicyRefused
from hpcdet.policy.compiled import CompiledPolicy
from hpcdet.policy.ledger import records
from hpcdet.policy.provenance.chains import SourceChain
from hpcdet.process.console import say
from hpcdet.process.ranks import node_name
from hpcdet.store.config.resolved_config import Governance
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.folder.records import Trial
from hpcdet.store.fs import files
from hpcdet.store.trials import parents

CLOCKS = datetime.timedelta(hours=1)
"""By which a node's clock may be behind another's before it is told."""
T = TypeVar("T")


class _Peers(Protocol):
    def broadcast(self, value: T, where: str = "") -> T:
        """Rank 0's value, on every rank."""


def decide(
    trial: TrialPaths, paths: ExperimentPaths, governance: Governance, peers: _Peers, *, chief: bool
) -> PolicyInEffect:
    """Return the policy in effect; all ranks call together, and rank 0 alone reads files and clock.

    Changes that users make while an attempt runs count from the next one on. No day is before
    what the ledgers of the trial and of its parent, and changes of the policy, have recorded: a
    clock that is behind brings no agreement and no certificate back.

    Args:
        trial: that goes on; ``paths``: of its experiment.
        chief: this is rank 0.

    Raises:
        GovernanceBroken, PolicyRefused: as ``policy_history.load`` and ``in_effect``, on all ranks.
    """
    told: dict[str, Any] = {}
    if chief:
        try:
            told = _decided(trial, paths, governance).encode()
        except HpcdetError as error:
            told = {"refused": _words(error)}
    told = peers.broadcast(told, "the policy in effect")
    if "refused" in told:
        kind, code, what, where, hint = told["refused"]
        made = GovernanceBroken if kind == "broken" else PolicyRefused
        raise made(code, what, where=where, hint=hint)
    return PolicyInEffect.decode(told)


def _decided(trial: TrialPaths, paths: ExperimentPaths, governance: Governance) -> PolicyInEffect:
    history = policy_history.load(paths, governance)
    recorded = [one.time for one in history.changes]
    record = Trial.read(trial.record)
    began = parents.of_parent(paths, trial, record.parent if record else "")
    recorded += [records.last_time(one.ledger) for one in (*trial.attempts(), *began)]
    now = _no_earlier(datetime.datetime.now(datetime.UTC), filter(files.is_time, recorded))
    found = in_effect(history, now.date(), _withdrawn(paths, history.newest))
    return dataclasses.replace(found, at=now.isoformat())


def _no_earlier(now: datetime.datetime, recorded: Iterable[str]) -> datetime.datetime:
    """Return the present time, or that of the newest record where the clock is behind it."""
    times = (datetime.datetime.fromisoformat(one) for one in recorded)
    newest = max((one.astimezone(datetime.UTC) for one in times), default=now)
    if newest - now > CLOCKS:
        hours = (newest - now).total_seconds() / 3600
        say(
            f"the clock of {node_name()} is {hours:.0f} h behind what was recorded at "
            f"{newest:%Y-%m-%d %H:%M} UTC: agreements are judged by that day; set the clock"
        )
    return max(now, newest)


def _withdrawn(paths: ExperimentPaths, policy: CompiledPolicy) -> dict[str, str]:
    """Sources whose chains end with a link by which their owners withdraw them."""
    found: dict[str, str] = {}
    for source in policy.sources:
        if source.chain is None:
            continue
        try:
            links = SourceChain.load(paths.code / source.chain.uri).links
        except (HpcdetError, OSError):
            continue  # which is for the verification of chains to tell
        if links and links[-1].kind == "revoke":
            by = links[-1].actor or "its owner"
            found[source.id] = f"the source {source.id} was withdrawn by {by}"
    return found


def _words(error: HpcdetError) -> list[str]:
    if isinstance(error, GovernanceBroken):
        return ["broken", error.check, _bare(error), error.where, error.hint]
    if isinstance(error, PolicyRefused):
        return ["refused", error.policy_code, _bare(error), error.where, error.hint]
    return ["broken", "G108", error.what, error.where, error.hint]


def _bare(error: HpcdetError) -> str:
    return error.what.partition(": ")[2]
