"""Verification of a trial's ledgers, and sums over the records that count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hpcdet.policy.codes import GovernanceBroken
from hpcdet.policy.compiled import MIX, Matrix
from hpcdet.policy.ledger import seals
from hpcdet.policy.ledger.owners import Owner, owner_of
from hpcdet.policy.ledger.paths import (
    LedgerPath,
    lost_between,
    opened,
    path_of,
    paths_of,
    seen_by,
    seen_first,
)
from hpcdet.policy.ledger.records import AttemptLedger, LedgerHead, LedgerOwner, LedgerRecord
from hpcdet.policy.merkle import Merkle


@dataclass(frozen=True)
class FirstBad:
    """The first record that is wrong: its attempt and place, the G code, and what is wrong.

    Attributes:
        where, hint: of what is not a ledger's own; "" of what is.
    """

    attempt: int
    seq: int
    code: str
    what: str
    where: str = ""
    hint: str = ""


@dataclass(frozen=True)
class VerifiedLedger:
    """The ledgers of a trial, and what was found.

    Attributes:
        path: what counts of each attempt.
        signed: ``trusted`` if all attempts are, else the least of them.
        unsealed: records behind the last seal, over all attempts.
        rollbacks: what was trained and lost: attempt, first and last record.
        bad: None: all of it is what was written.
    """

    ledgers: tuple[AttemptLedger, ...]
    path: LedgerPath = ()
    signed: seals.Signed = "none"
    unsealed: int = 0
    rollbacks: tuple[tuple[int, int, int], ...] = ()
    bad: FirstBad | None = None

    @property
    def records(self) -> int:
        """Records of all attempts, those that were lost included."""
        return sum(len(one.records) for one in self.ledgers)

    @property
    def head(self) -> LedgerHead | None:
        """The last record that counts."""
        return self.ledgers[-1].head if self.path else None

    def counting(self) -> Iterator[LedgerRecord]:
        """The records that count, in order."""
        by_attempt = {one.attempt: one for one in self.ledgers}
        for attempt, count in self.path:
            yield from by_attempt[attempt].records[:count]

    def holding(self, head: LedgerHead) -> VerifiedLedger:
        """The same, of which nothing is wrong, with a record that has to be in them."""
        return replace(self, bad=_missing(paths_of(self.ledgers), head))


def verify(
    ledgers: Sequence[AttemptLedger],
    trust: Collection[str] = (),
    *,
    trial: int | None = None,
    must_hold: LedgerHead | None = None,
) -> VerifiedLedger:
    """Verify the ledgers of a trial's attempts, in order.

    Args:
        trust: public keys, hex, that may sign or certify; empty: signatures are checked, and
            nobody is trusted.
        trial: whose they have to be; None: of one trial, whichever.
        must_hold: a record that has to be in them, as a checkpoint names it.
    """
    found: list[tuple[AttemptLedger, LedgerPath]] = []
    levels: list[seals.Signed] = []
    rollbacks: list[tuple[int, int, int]] = []
    owners: list[Owner] = []
    unsealed = 0
    there = tuple(one for one in ledgers if one.records or one.wrong)
    for ledger in there:
        seq = 0
        try:
            damaged = bool(ledger.wrong) and not _known_before(ledger, there)
            if not ledger.records:
                if damaged:
                    raise GovernanceBroken("G104", ledger.wrong)
                continue
            path = (*path_of(found, opened(ledger)), (ledger.attempt, len(ledger.records)))
            first = ledger.records[0]
            owner = owner_of(ledger)
            if trial not in (None, owner[1]) or not _goes_on(owners, owner, first):
                raise GovernanceBroken("G105", f"it is the ledger of {owner[0]}/{owner[1]}")
            owners.append(owner)
            levels.append(seals.trust_of(first.body, first.time, trust))
            seq = 1
            seen = seen_by(ledger, [one for one, _ in found])
            rollbacks += _rollback(ledger, found[-1][1] if found else (), path, seen)
            for seq, tail in _sealed(ledger):  # noqa: B007 - says where it stopped
                pass
            unsealed += tail
            if damaged:
                seq = len(ledger.records)
                raise GovernanceBroken("G104", ledger.wrong)
        except GovernanceBroken as error:
            bad = FirstBad(ledger.attempt, seq, error.check, error.what.partition(": ")[2])
            last = found[-1][1] if found else ()
            return VerifiedLedger(there, last, "none", unsealed, tuple(rollbacks), bad)
        found.append((ledger, path))
    last = found[-1][1] if found else ()
    signed: seals.Signed = min(levels, key=("none", "self", "trusted").index, default="none")
    whole = VerifiedLedger(there, last, signed, unsealed, tuple(rollbacks))
    return whole if must_hold is None else whole.holding(must_hold)


def _goes_on(owners: Sequence[Owner], owner: Owner, first: LedgerRecord) -> bool:
    """Return True if the next ledger is of the same trial, or of that of a fork that goes on."""
    if not owners or owner == owners[-1]:
        return True
    forked = owner[1] == owners[-1][1] and owner not in owners
    return forked and first.body.get("accepts") is not None


def _known_before(ledger: AttemptLedger, there: Sequence[AttemptLedger]) -> bool:
    """Return True if the attempt behind has seen it as it is: a failure of power damages tails."""
    behind = next((one for one in there if one.attempt > ledger.attempt and one.records), None)
    try:
        seen = {} if behind is None else seen_first(behind)
    except GovernanceBroken:
        return False
    return seen.get(ledger.attempt) == len(ledger.records)


def _missing(
    found: Sequence[tuple[AttemptLedger, LedgerPath]], head: LedgerHead
) -> FirstBad | None:
    try:
        path_of(found, head)
    except GovernanceBroken as error:
        return FirstBad(head.attempt, head.seq, error.check, error.what.partition(": ")[2])
    return None


def _rollback(
    ledger: AttemptLedger, before: LedgerPath, path: LedgerPath, seen: Mapping[int, int]
) -> list[tuple[int, int, int]]:
    """Return what an attempt has undone of the path before it, which it has to record."""
    there = tuple((attempt, min(count, seen.get(attempt, 0))) for attempt, count in before)
    lost = lost_between(there, path)
    second = next((one for one in ledger.records[1:] if one.type != "seal"), None)
    said = second.body.get("lost") if second is not None and second.type == "rollback" else []
    killed = second is None and bool(lost) and not ledger.wrong  # before it could say so
    if said != lost and not killed:
        raise GovernanceBroken(
            "G106", f"records were lost that it does not say: {lost}, and it says {said}"
        )
    return [(one[0], one[1], one[2]) for one in lost]


def _sealed(ledger: AttemptLedger) -> Iterator[tuple[int, int]]:
    """Verify the seals: yield each record's place, and how many wait for a seal behind it."""
    first = ledger.records[0].body
    tree, begin = Merkle(), 0
    for place, record in enumerate(ledger.records):
        yield place, place - begin
        if record.type == "seal":
            root = tree.root
            said = (record.body.get("begin"), record.body.get("end"), record.body.get("root"))
            if place == begin or said != (begin, place - 1, root):
                raise GovernanceBroken("G104", "a seal is not of the records before it")
            of = LedgerOwner(first["experiment"], first["trial"], ledger.attempt)
            segment = seals.Segment(of, begin, place - 1, root)
            seals.verify_segment(segment, record.body.get("dsse"), str(first.get("key")))
            tree, begin = Merkle(), place + 1
        else:
            tree.add(record.to_bytes())
    yield len(ledger.records) - 1, len(ledger.records) - begin


@dataclass
class LedgerExposure:
    """The units that were trained, by policy and kind of rows, as records that count say.

    Attributes:
        units: by digest of the policy, then by source, or sources ``a+b``.
        matrices: by digest: sources, layers, weights float64[sources, layers].
    """

    units: dict[str, Counter[str]] = field(default_factory=dict)
    matrices: dict[str, tuple[list[str], list[str], Matrix]] = field(default_factory=dict)

    @staticmethod
    def of(records: Iterator[LedgerRecord]) -> LedgerExposure:
        """Sum the ``step_batch`` records.

        Raises:
            GovernanceBroken: G114: a record counts rows of a policy or source that none names.
        """
        found = LedgerExposure()
        for record in records:
            try:
                found._add(record)
            except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
                what = f"record {record.seq} ({record.type}) cannot be counted: {error!r}"
                raise GovernanceBroken("G114", what) from None
        return found

    def matrix(self) -> dict[str, dict[str, float]]:
        """E by source and layer, in rows times weight."""
        total: dict[str, dict[str, float]] = {}
        for digest, kinds in self.units.items():
            sources, layers, weights = self.matrices[digest]
            for kind, units in sorted(kinds.items()):
                members = [sources.index(one) for one in kind.split(MIX)]
                gained = units * weights[members].min(axis=0)
                for member in members:
                    row = total.setdefault(sources[member], dict.fromkeys(layers, 0.0))
                    for layer, more in zip(layers, gained.tolist(), strict=True):
                        row[layer] = row.get(layer, 0.0) + more
        return total

    def of_layer(self, layer: str) -> list[tuple[str, int, float]]:
        """Sources that a layer was permitted to learn from: examples, and examples x weight."""
        found: Counter[str] = Counter()
        for digest, kinds in self.units.items():
            sources, layers, weights = self.matrices[digest]
            if layer in layers:
                column = weights[:, layers.index(layer)]
                for kind, units in kinds.items():
                    members = kind.split(MIX)
                    if min(column[sources.index(one)] for one in members) > 0:
                        found.update(dict.fromkeys(members, units))
        exposed = self.matrix()
        return [(name, found[name], exposed[name][layer]) for name in sorted(found)]

    def _add(self, record: LedgerRecord) -> None:
        body: Mapping[str, Any] = record.body
        if record.type == "policy":
            weights = np.array([[float.fromhex(one) for one in row] for row in body["weights"]])
            sources, layers = list(body["sources"]), list(body["layers"])
            inside = bool(np.isfinite(weights).all() and (weights >= 0).all())
            if weights.shape != (len(sources), len(layers)) or not inside or weights.max() > 1:
                raise ValueError("its weights are not one per source and layer, from 0 to 1")
            self.matrices[body["digest"]] = sources, layers, weights
        elif record.type == "step_batch":
            sources = self.matrices[body["policy_digest"]][0]
            kinds = self.units.setdefault(body["policy_digest"], Counter())
            for kind, units in body["counts"].items():
                unknown = set(kind.split(MIX)) - set(sources)
                if unknown or type(units) is not int or units < 0:
                    raise ValueError(f"{units!r} rows of {kind!r}")
                kinds[kind] += units
