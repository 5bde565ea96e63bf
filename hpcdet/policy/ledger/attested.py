"""Checkpoints beside the ledgers that they were made with, as far as manifests go.

A manifest names a record of a ledger and the digest of its governance state, and has a signature
where the run has a key. The ledger has a record of the checkpoint, and of all rows before it. Both
towers verify that; who reads the state itself compares it with what is verified here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdet.policy.codes import GovernanceBroken
from hpcdet.policy.ledger import seals
from hpcdet.policy.ledger.paths import paths_of, records_behind
from hpcdet.policy.ledger.records import AttemptLedger, LedgerHead, LedgerOwner, is_head
from hpcdet.policy.ledger.verify import LedgerExposure, VerifiedLedger, verify
from hpcdet.store.fs import files

_BACKUP = "put the ledger back from a backup; without it nothing shows what the weights learned"
_OTHER = "hpcdet ckpt verify; go on from a checkpoint that nobody has changed"


@dataclass(frozen=True)
class CheckpointClaim:
    """A checkpoint by its own manifest.

    Attributes:
        folder: of the checkpoint.
        name: of its folder when it was made.
        digest: of its content, BLAKE3, 64 hex digits.
        said: of governance; empty: nothing.
        batches: trained; None: it does not say.
    """

    folder: Path
    name: str
    digest: str
    said: Mapping[str, Any]
    batches: int | None = None

    @staticmethod
    def of(folder: Path, name: str, digest: str, meta: Mapping[str, Any]) -> CheckpointClaim:
        """The claim of a manifest, or of that which it was linked from."""
        name = str(meta.get("linked", {}).get("name", name))
        return CheckpointClaim(
            folder, name, digest, meta.get("governance") or {}, meta.get("batches")
        )


@dataclass(frozen=True)
class AttestedCheckpoint:
    """A checkpoint of which a ledger has the record.

    Attributes:
        ledgers: of its trial, without the damage behind the record; ``verified``: the same.
        head: the record.
        signed: False: the run has no key.
    """

    ledgers: tuple[AttemptLedger, ...]
    verified: VerifiedLedger
    head: LedgerHead
    signed: bool


@dataclass(frozen=True)
class LedgerCounts:
    """The rows that a ledger counts up to a record.

    Attributes:
        rows: by source; ``a+b`` of several. ``dropped``: of sources that the policy drops.
        inherited: rows of the trial's parent are among them.
        exposure: of the rows of the trial's own.
    """

    rows: Mapping[str, int]
    dropped: int
    inherited: bool
    exposure: LedgerExposure

    @staticmethod
    def up_to(ledgers: Sequence[AttemptLedger], head: LedgerHead) -> LedgerCounts:
        """Sum the records that count up to one.

        Raises:
            GovernanceBroken: G105: it is in no ledger; G114: a record cannot be counted.
        """
        counting = list(records_behind(paths_of(ledgers), head))
        exposure = LedgerExposure.of(iter(counting))
        rows, dropped, inherited = Counter[str](), 0, False
        try:
            for one in counting:
                given = one.body.get("inherited") if one.type == "resume" else None
                if given is not None:
                    inherited = True
                    rows.update({str(name): int(n) for name, n in given["rows"].items()})
                    dropped += int(given["dropped"])
                elif one.type == "step_batch":
                    dropped += int(one.body.get("dropped", 0))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise GovernanceBroken("G114", f"a record cannot be counted: {error!r}") from None
        for units in exposure.units.values():
            rows.update(units)
        return LedgerCounts(dict(sorted((+rows).items())), dropped, inherited, exposure)

    def encode(self) -> dict[str, Any]:
        """Plain data: rows and those that were dropped."""
        return {"rows": dict(self.rows), "dropped": self.dropped}


def head_of(said: Mapping[str, Any]) -> LedgerHead | None:
    """The record that a checkpoint was made behind, by its block of governance; None: none."""
    head = said.get("ledger")
    return LedgerHead(**head) if is_head(head) else None


def digest_of(said: Mapping[str, Any]) -> str:
    """Digest of a manifest's block of governance, without its own signature."""
    plain = {name: value for name, value in said.items() if name != "seal"}
    return f"sha256:{hashlib.sha256(files.canonical(plain)).hexdigest()}"


def attested(
    claim: CheckpointClaim,
    ledgers: Sequence[AttemptLedger],
    trust: Collection[str],
    *,
    trial: int | None,
    root: str = "",
    verified: VerifiedLedger | None = None,
) -> AttestedCheckpoint:
    """Return a checkpoint that a ledger has the record of, and that the ledger's key has signed.

    Args:
        ledgers: of the attempts of the trial that made it, as far as they are there.
        trust: public keys that may sign or certify; empty: nobody is trusted.
        trial: whose ledgers they have to be; None: of one trial, whichever.
        root: digest of the governance state in it; "": that is not read here.
        verified: the same ledgers, if nothing is wrong with them.

    Raises:
        GovernanceBroken: G102, G103, G104, G105, G106.
    """
    where = str(claim.folder)
    head = head_of(claim.said)
    if head is None:
        what = "its manifest names no record of a ledger"
        raise GovernanceBroken("G105", what, where=where, hint=_BACKUP)
    behind = tuple(_undamaged_before(one, head) for one in ledgers)
    if verified is None:
        found = verify(behind, trust, trial=trial, must_hold=head)
    else:
        found = verified.holding(head)
    if found.bad is not None:
        bad = found.bad
        path = next((str(one.path) for one in behind if one.attempt == bad.attempt), where)
        what = f"attempt {bad.attempt}, record {bad.seq}: {bad.what}"
        raise GovernanceBroken(bad.code, what, where=path, hint=_BACKUP)
    ledger = next(one for one in behind if one.attempt == head.attempt)
    _refuse_other_record(claim, ledger, head, root)
    return AttestedCheckpoint(behind, found, head, _is_signed(claim, ledger, head))


def refuse_other_counts(claim: CheckpointClaim, found: AttestedCheckpoint) -> None:
    """Refuse a manifest whose sums are not those of the ledger.

    Exposure that was inherited is not in the ledger: there rows alone are compared.

    Raises:
        GovernanceBroken: G114.
    """
    counted = LedgerCounts.up_to(found.ledgers, found.head)
    said = {name: claim.said.get(name) for name in ("rows", "dropped")}
    if said != counted.encode():
        what = f"its counts of rows are not those of the ledger: {said}, not {counted.encode()}"
    elif not counted.inherited and not _is_exposure(claim.said, counted.exposure.matrix()):
        what = "its exposure is not what the ledger counts"
    else:
        return
    hint = "the manifest was changed: take another checkpoint"
    raise GovernanceBroken("G114", what, where=str(claim.folder), hint=hint)


def _is_exposure(said: Mapping[str, Any], counted: Mapping[str, Mapping[str, float]]) -> bool:
    """True if a manifest's exposure is that counted by source and layer."""
    try:
        rows = dict(zip(said["sources"], said["exposure"], strict=True))
        layers = {layer for row in counted.values() for layer in row}
        whole = counted.keys() <= rows.keys() and layers <= set(said["layers"])
        return whole and all(
            math.isclose(units, counted.get(source, {}).get(layer, 0.0), abs_tol=1e-9)
            for source, row in rows.items()
            for layer, units in zip(said["layers"], row, strict=True)
        )
    except (KeyError, TypeError, ValueError):
        return False


def _undamaged_before(ledger: AttemptLedger, head: LedgerHead) -> AttemptLedger:
    """The ledger without the damage that a failure of power leaves behind what is gone on from."""
    behind = ledger.attempt > head.attempt or (
        ledger.attempt == head.attempt and len(ledger.records) > head.seq
    )
    return dataclasses.replace(ledger, wrong="") if ledger.wrong and behind else ledger


def _refuse_other_record(
    claim: CheckpointClaim, ledger: AttemptLedger, head: LedgerHead, root: str
) -> None:
    """Refuse a manifest that is not of the checkpoint that the ledger's record is of (G103)."""
    last = (one for one in reversed(ledger.records[: head.seq + 1]) if one.type != "seal")
    made = next(last, None)
    of = made.body if made is not None and made.type == "checkpoint" else {}
    said = claim.said.get("root")
    wrong = ""
    if (claim.name, said) != (of.get("name"), of.get("root")) or (
        made is not None and claim.batches not in (None, made.step)
    ):
        wrong = f"its manifest is not of the checkpoint that record {head.seq} is of"
    elif root and root != said:
        wrong = "its governance state is not the one that was saved"
    if wrong:
        raise GovernanceBroken("G103", wrong, where=str(claim.folder), hint=_OTHER)


def _is_signed(claim: CheckpointClaim, ledger: AttemptLedger, head: LedgerHead) -> bool:
    """Whether the key of its ledger has signed it; False: the run has no key.

    Raises:
        GovernanceBroken: G102: it has one, and has not.
    """
    opened = ledger.records[0].body
    key, envelope = str(opened.get("key") or ""), claim.said.get("seal")
    if not key and envelope is None:
        return False
    owner = LedgerOwner(str(opened["experiment"]), int(opened["trial"]), ledger.attempt)
    root, summary = str(claim.said.get("root")), digest_of(claim.said)
    made = seals.SealedCheckpoint(owner, claim.name, claim.digest, root, summary, head)
    try:
        seals.verify_checkpoint(made, envelope, key)
    except GovernanceBroken as error:
        what, hint = error.what.removeprefix("G102: "), "it was changed, or another key signed it"
        raise GovernanceBroken("G102", what, where=str(claim.folder), hint=hint) from None
    return True
