"""The ledger of an attempt on all its ranks: rank 0 writes it, the others agree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from hpcdet.checkpoint import LoadedState, Manifest
from hpcdet.data.sample_order import CountedOrder, Order
from hpcdet.data.sourced import SourceTable, StreamOrder
from hpcdet.guard.accounts.anchored_ledgers import AnchoredLedgers
from hpcdet.guard.accounts.checkpoint_records import settled, state_root
from hpcdet.guard.accounts.known_ledgers import known_by_ledgers, undone
from hpcdet.guard.accounts.same_on_ranks import same_on_ranks
from hpcdet.guard.accounts.trial_ledger import Attest, TrialLedger
from hpcdet.guard.counting.exposure import Exposure
from hpcdet.guard.guard import Guard
from hpcdet.guard.resume.resume_verdicts import SCHEMA, Check, Overrides, State
from hpcdet.policy.changes.policy_in_effect import PolicyInEffect
from hpcdet.policy.codes import GovernanceBroken
from hpcdet.policy.compiled import MIX
from hpcdet.policy.keys import run_keys
from hpcdet.policy.ledger import owners, records
from hpcdet.policy.ledger.attested import head_of
from hpcdet.policy.ledger.records import AttemptLedger
from hpcdet.process.console import say
from hpcdet.store.config.resolved_config import Governance
from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.trials import parents
from hpcdet.store.trials.parents import Parent
from hpcdet.train.attempt import node_proof
from hpcdet.train.attempt.session import Session
from hpcdet.units import Units

_MOST_RUNS = 4096
"""Stretches of samples of one source that a ledger lists; of data with more it has their digest."""


class AttemptAccounts:
    """The ledger of an attempt, as its training loop sees it; all ranks call together.

    Args:
        decided: the policy in effect.

    Attributes:
        ledger: on rank 0; None elsewhere.
    """

    def __init__(
        self,
        guard: Guard,
        session: Session,
        named: Governance,
        decided: PolicyInEffect,
    ) -> None:
        self._guard, self._session, self._named = guard, session, named
        acts = decided.acts
        self._changes = len(acts), str(acts[-1]["digest"]) if acts else ""
        self.ledger: TrialLedger | None = None
        self._earlier: list[AttemptLedger] = []
        experiment = session.place.experiment
        assert experiment is not None
        self._nodes = _attested(experiment, session)
        if session.ranks.chief:
            self._earlier = _earlier(session)
            key = None
            if named.run_key is not None:
                key = run_keys.load(experiment, named, guard.policy, recorded=decided.at)
            self.ledger = TrialLedger(guard, session.place, self._earlier, key)
            self._owner = self.ledger.experiment, session.place.trial.number
            anchors = () if experiment.rehearsal else guard.policy.ledger.anchor
            self._anchored = AnchoredLedgers(anchors, self._tell)

    def verify(self, loaded: LoadedState, overrides: Overrides) -> list[Check]:
        """Verify a checkpoint beside the ledgers it was made with, before its state is put back.

        Rank 0 does, and all ranks have the same state.

        Raises:
            GovernanceBroken: on all ranks: G102 to G107, G114.
        """
        peers, state = self._session.peers, loaded.shared.get("governance")
        if not isinstance(state, dict) or state.get("schema") != SCHEMA:
            return []  # which is said by who puts it back
        checks = same_on_ranks(self._guard.policy.digest, state, peers.allgather)
        told: dict[str, Any] = {}
        if self._session.ranks.chief:
            try:
                found = self._beside_ledgers(loaded, state, overrides)
                self._beside_anchors()
                told = {"checks": [asdict(one) for one in found]}
            except GovernanceBroken as error:
                what = error.what.removeprefix(f"{error.check}: ")
                told = {"broken": [error.check, what, error.where, error.hint]}
        told = peers.broadcast(told)
        if "broken" in told:
            code, what, where, hint = told["broken"]
            raise GovernanceBroken(code, what, where=where, hint=hint)
        return checks + [Check(**one) for one in told["checks"]]

    def _beside_ledgers(
        self, loaded: LoadedState, state: State, overrides: Overrides
    ) -> list[Check]:
        manifest, folder, place = loaded.manifest, loaded.folder, self._session.place
        if not manifest.inherited:
            mine, trust = self._earlier, run_keys.signers(self._guard.policy, self._named)
            of: int | None = place.trial.number
            checks = known_by_ledgers(manifest, folder, state, mine, trust, overrides, trial=of)
            return [*checks, undone(manifest, mine)]
        record = self._session.record
        if manifest.digest != record.origin.get("digest"):
            what = "it is another checkpoint than the trial's record names to begin from"
            hint = "begin it anew: hpcdet fork"
            raise GovernanceBroken("G103", what, where=str(folder), hint=hint)
        theirs = _of_parent(self._session)
        if not theirs:
            return [Check(5, "G105", "unknown", "the ledgers of its parent are not there")]
        copies, named = owners.are_copies(place.trial, record.parent), Parent.parse(record.parent)
        trust = run_keys.parents_signers(self._guard.policy, self._session.config, record.parent)
        of = None if copies or named is None else named.trial
        checks = known_by_ledgers(manifest, folder, state, theirs, trust, overrides, trial=of)
        self._anchored.refuse_lost(lambda: _of_parent(self._session), copies=copies)
        head = head_of(manifest.meta["governance"])
        if copies and head is not None:
            checks += self._anchored.doubts(theirs, head)
        return checks

    def _beside_anchors(self) -> None:
        """Refuse ledgers that do not have what ``file:`` anchors hold of them.

        Raises:
            GovernanceBroken: G105.
        """
        self._anchored.refuse_lost(lambda: _earlier(self._session), self._owner)

    def _tell(self, anchor: str, error: str) -> None:
        """Record that an anchor fails, or holds heads again (""), and say so."""
        self._session.tracker.record("governance", event="anchor", anchor=anchor, error=error)
        without = f"{error}; training goes on without it"
        say(f"anchor {anchor}: {without if error else 'it holds the head of the ledger again'}")

    def _tell_of_anchors(self, *, last: bool = False) -> None:
        for anchor, error in () if self.ledger is None else self.ledger.anchored(last=last):
            self._tell(anchor, error)

    def begin(
        self,
        origin: Manifest | None,
        units: Units,
        checks: Sequence[Check] = (),
        inherited: Exposure | None = None,
    ) -> None:
        """Open the ledger, when the state of a checkpoint was put back, or none is there.

        Args:
            origin: the checkpoint that the attempt goes on from.
            checks: what was found of it.
            inherited: of an heir, what its parent was trained on.

        Raises:
            GovernanceBroken: nothing was put back, and anchors hold what is not there (G105).
        """
        if self.ledger is None:
            return
        if origin is None:
            self._beside_anchors()
        head = None if origin is None else head_of(origin.meta.get("governance") or {})
        heir = origin is not None and origin.inherited
        parent: dict[str, Any] | None = None
        if heir and head is not None and origin is not None:
            said = origin.meta["governance"]
            known = {"trial": self._session.record.parent, "root": said["root"]}
            parent = {**known, **asdict(head)}
        before = () if origin is None or heir else self._earlier
        self.ledger.begin(
            units.batches,
            units.records,
            accepts=None if head is None or heir else settled(before, head),
            parent=parent,
            changes=self._changes,
            checkpoint="" if origin is None else origin.name,
            inherited=None if inherited is None else inherited.encode(),
            checks=[asdict(one) for one in checks],
            world=self._session.ranks.world,
            cut=_cut(self._earlier),
        )
        if self._nodes:
            self.ledger.append("site_attest", nodes=self._nodes)

    def admit(
        self,
        sources: SourceTable | None,
        order: CountedOrder | None,
        canaries: Mapping[str, int],
    ) -> None:
        """Say which data are trained, and in which order, so that anyone can tell what was when.

        Of streams that is whose sample comes when, and not which one.

        Args:
            sources: of the records of the data.
            canaries: rows that are added to each epoch, by source.
        """
        if self.ledger is None:
            return
        rule = order.rule if isinstance(order, Order) else ""
        batches: dict[str, Any] = {"rule": rule, "seed": str(self._session.record.seed)}
        if isinstance(order, Order):
            batches |= {"size": order.size, "batch": order.batch, "epoch": order.epoch_records}
        elif isinstance(order, StreamOrder) and sources is not None:
            names = [MIX.join(one) for one in sources.mixtures]
            batches["streams"] = dict(zip(names, order.shares, strict=True))
            sources = None
        more = {"canaries": dict(canaries)} if canaries else {}
        data = None if sources is None else _listed(sources)
        self.ledger.append("source_admit", data=data, order=batches, **more)

    def changed(self, acts: Sequence[Mapping[str, Any]]) -> None:
        """Say what has changed under the policy since what the attempt goes on from.

        Args:
            acts: as ``PolicyInEffect.acts``, and ``{"act": "drop", "source", "reason"}``.
        """
        for act in acts if self.ledger is not None else ():
            assert self.ledger is not None
            kind = "revoke" if act["act"] in ("revoke", "drop") else "policy_change"
            self.ledger.append(kind, **act)

    def stepped(self, units: Units) -> None:
        """A batch was trained; a scaler may have left its step out."""
        if self.ledger is not None:
            if self._guard.optimizers.skipped:
                self.ledger.skipped(units.batches)
            self.ledger.stepped(units.batches, units.records)
        self._guard.optimizers.skipped = False

    def checkpointed(
        self, step: int, state: Mapping[str, Any], summary: dict[str, Any]
    ) -> Attest | None:
        """Account for a checkpoint that is about to be made.

        Args:
            state: of governance in it; ``summary``: of that in its manifest, to be added to.

        Returns:
            What the save calls before its commit; None on other ranks.
        """
        if self.ledger is None:
            return None
        self._tell_of_anchors()
        place = self._session.place
        name = place.trial.checkpoint(step, place.attempt.number).name
        if self._nodes:
            summary["site"] = self._nodes
        return self.ledger.checkpointed(name, state_root(state), summary)

    def evaluated(self, metrics: Mapping[str, Any]) -> None:
        """A validation has come to these metrics."""
        if self.ledger is not None:
            said = {
                name: float(value).hex()
                for name, value in sorted(metrics.items())
                if isinstance(value, int | float)
            }
            self.ledger.append("eval", metrics=said)
            self._tell_of_anchors()

    def probed(self, found: Mapping[str, Any]) -> None:
        """Probes have measured the gradients of each source in each layer."""
        if self.ledger is not None:
            norms = {which: [_hex(row) for row in found[which]] for which in ("on", "off")}
            names = {which: list(found[which]) for which in ("sources", "layers")}
            self.ledger.append("audit", **names, **norms)

    def close(self) -> None:
        """End the ledger; the attempt has ended well."""
        if self.ledger is not None:
            self.ledger.close()
            self._tell_of_anchors(last=True)


def _attested(experiment: ExperimentPaths, session: Session) -> list[dict[str, str]]:
    """Return what nodes of all ranks state, each once; empty where nothing is required of them.

    Raises:
        GovernanceBroken: G121: this node does not attest any more what it did when it began.
    """
    mine = node_proof.require(experiment, session.config)
    if mine is None:
        return []
    everyone = session.peers.allgather(asdict(mine))
    return [one for _, one in sorted({one["node"]: one for one in everyone}.items())]


def _earlier(session: Session) -> list[AttemptLedger]:
    """Ledgers of the trial's attempts before this one."""
    own = session.place.attempt.number
    return _read(one for one in session.place.trial.attempts() if one.number < own)


def _of_parent(session: Session) -> list[AttemptLedger]:
    """Ledgers of the trial that this one began from; copies where they were brought with it."""
    place = session.place
    return _read(parents.of_parent(place.experiment, place.trial, session.record.parent))


def _read(attempts: Iterable[AttemptPaths]) -> list[AttemptLedger]:
    read = (records.read(one.number, one.ledger) for one in attempts)
    return [one for one in read if one is not None]


def _cut(earlier: Sequence[AttemptLedger]) -> int | None:
    """The attempt before, if it did not end well: steps behind its last record are unknown."""
    last = next((one for one in reversed(earlier) if one.records), None)
    closed = last is None or any(one.type == "close" for one in last.records[-2:])
    return None if closed or last is None else last.attempt


def _listed(sources: SourceTable) -> dict[str, Any]:
    """The samples of each source, as stretches of their indices."""
    codes = sources.codes
    begins = np.flatnonzero(np.diff(codes, prepend=-1)) if len(codes) else codes
    lengths = np.diff(begins, append=len(codes))
    names = [MIX.join(one) for one in sources.mixtures]
    counts = np.bincount(codes, minlength=len(names)).tolist()
    runs: dict[str, list[list[int]]] | None = None
    if len(begins) <= _MOST_RUNS:
        runs = {name: [] for name in names}
        of_runs = codes[begins].tolist()
        for code, at, length in zip(of_runs, begins.tolist(), lengths.tolist(), strict=True):
            runs[names[code]].append([at, length])
    return {
        "examples": dict(zip(names, counts, strict=True)),
        "runs": runs,
        "digest": state_root([names, codes]) if runs is None else "",
    }


def _hex(row: Sequence[float]) -> list[str]:
    return [float(one).hex() for one in row]
