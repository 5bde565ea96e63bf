"""A checkpoint beside the ledgers that it was made with: checks 2 to 6, and 14 by the ledger."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Sequence
from pathlib import Path

from hpcdet.checkpoint import Manifest
from hpcdet.checkpoint.format import remove
from hpcdet.checkpoint.format.manifest import position
from hpcdet.guard.accounts.checkpoint_records import digest_of, head_of, settled, state_root
from hpcdet.guard.counting.exposure import Exposure
from hpcdet.guard.resume.verdicts import NO_OVERRIDES, Check, Overrides, State
from hpcdet.policy.codes import GovernanceBroken
from hpcdet.policy.ledger import seals
from hpcdet.policy.ledger.paths import lost_by, paths_of, records_behind
from hpcdet.policy.ledger.records import AttemptLedger, LedgerHead, LedgerOwner
from hpcdet.policy.ledger.verify import LedgerExposure, verify
from hpcdet.store.folder.layout import CHECKPOINT_NAME

_BAD = re.compile(rf"{re.escape(remove.BAD)}({CHECKPOINT_NAME.pattern})")
_BACKUP = "put the ledger back from a backup; without it nothing shows what the weights learned"


def known_by_ledgers(
    manifest: Manifest,
    folder: Path,
    state: State,
    ledgers: Sequence[AttemptLedger],
    trust: Collection[str],
    overrides: Overrides = NO_OVERRIDES,
    *,
    trial: int | None,
) -> list[Check]:
    """The checkpoint is what the ledgers say that was made, and they are what was written.

    Args:
        folder: of the checkpoint; ``state``: of governance in it.
        ledgers: of the attempts of the trial that made it, as far as they are there.
        trust: public keys that may sign or certify; empty: nobody is trusted.
        trial: whose ledgers they have to be; None: of one trial, whichever.

    Raises:
        GovernanceBroken: G102, G103, G104, G105, G106, G114.
    """
    where = str(folder)
    head = head_of(manifest)
    if head is None:
        raise GovernanceBroken(
            "G105", "its manifest names no record of a ledger", where=where, hint=_BACKUP
        )
    behind = tuple(_undamaged_before(one, head) for one in ledgers)
    found = verify(behind, trust, trial=trial, must_hold=head)
    if found.bad is not None:
        bad = found.bad
        path = next((str(one.path) for one in behind if one.attempt == bad.attempt), where)
        what = f"attempt {bad.attempt}, record {bad.seq}: {bad.what}"
        raise GovernanceBroken(bad.code, what, where=path, hint=_BACKUP)
    ledger = next(one for one in behind if one.attempt == head.attempt)
    _same_root(manifest, state, ledger, head, where)
    signed = _signed(manifest, ledger, head, where)
    checks = [
        Check(2, "G102", signed, "" if signed == "passed" else "the run has no key"),
        Check(3, "G103", *_older(folder)),
        Check(4, "G104", "passed", f"{found.records} records, {found.unsealed} of them unsealed"),
        Check(5, "G105", "passed", f"attempt {head.attempt}, record {head.seq}"),
    ]
    try:
        _same_sums(state, behind, head, where)
    except GovernanceBroken as error:
        return [*checks, overrides.settle(14, error)]
    return [*checks, Check(14, "G114", "passed", "by the ledger")]


def undone(manifest: Manifest, ledgers: Sequence[AttemptLedger]) -> Check:
    """Return the check that records which training an attempt undoes as it goes on."""
    head = head_of(manifest)
    accepts = None if head is None else settled(ledgers, head)
    lost = lost_by(ledgers, accepts)
    said = "; ".join(f"attempt {one[0]}, records {one[1]} to {one[2]}" for one in lost)
    return Check(6, "G106", "recorded" if lost else "passed", said)


def _undamaged_before(ledger: AttemptLedger, head: LedgerHead) -> AttemptLedger:
    """The ledger without the damage that a failure of power leaves behind what is gone on from."""
    behind = ledger.attempt > head.attempt or (
        ledger.attempt == head.attempt and len(ledger.records) > head.seq
    )
    return dataclasses.replace(ledger, wrong="") if ledger.wrong and behind else ledger


def _same_root(
    manifest: Manifest, state: State, ledger: AttemptLedger, head: LedgerHead, where: str
) -> None:
    """The state is the one that the ledger's record is of (G103)."""
    made = _record_of(ledger, head)
    name = manifest.meta.get("linked", {}).get("name", manifest.name)
    root, said = state_root(state), manifest.meta["governance"].get("root")
    wrong = ""
    if (made.get("name"), said) != (name, made.get("root")):
        wrong = f"its manifest is not of the checkpoint that record {head.seq} is of"
    elif root != said:
        wrong = "its governance state is not the one that was saved"
    if wrong:
        hint = "hpcdet ckpt verify; go on from a checkpoint that nobody has changed"
        raise GovernanceBroken("G103", wrong, where=where, hint=hint)


def _signed(manifest: Manifest, ledger: AttemptLedger, head: LedgerHead, where: str) -> str:
    """The checkpoint is signed by the key of its ledger (G102): ``passed`` or ``unknown``."""
    said = manifest.meta["governance"]
    opened = ledger.records[0].body
    key, envelope = str(opened.get("key") or ""), said.get("seal")
    if not key and envelope is None:
        return "unknown"
    owner = LedgerOwner(str(opened["experiment"]), int(opened["trial"]), ledger.attempt)
    made = seals.SealedCheckpoint(
        owner,
        manifest.meta.get("linked", {}).get("name", manifest.name),
        manifest.digest,
        str(said.get("root")),
        digest_of(said),
        head,
    )
    try:
        seals.verify_checkpoint(made, envelope, key)
    except GovernanceBroken as error:
        what, hint = error.what.removeprefix("G102: "), "it was changed, or another key signed it"
        raise GovernanceBroken("G102", what, where=where, hint=hint) from None
    return "passed"


def _record_of(ledger: AttemptLedger, head: LedgerHead) -> dict[str, object]:
    """The ``checkpoint`` record that a head stands at, or behind which its seals stand."""
    there = reversed(ledger.records[: head.seq + 1])
    made = next((one for one in there if one.type != "seal"), None)
    return dict(made.body) if made is not None and made.type == "checkpoint" else {}


def _older(folder: Path) -> tuple[str, str]:
    """Whether newer checkpoints were set aside, since they are torn."""
    step, attempt = position(folder.name)
    aside = [_BAD.match(path.name) for path in remove.aside(folder.parent)]
    torn = {one[1] for one in aside if one and int(one[2]) > step and int(one[3]) >= attempt > 0}
    return ("recorded", f"torn: {', '.join(sorted(torn))}") if torn else ("passed", "")


def _same_sums(
    state: State, ledgers: Sequence[AttemptLedger], head: LedgerHead, where: str
) -> None:
    """The rows that the checkpoint has counted are those that the records count (G114)."""
    counting = list(records_behind(paths_of(ledgers), head))
    summed = Exposure()
    for one in counting:
        if one.type == "resume" and one.body.get("inherited") is not None:
            summed.join(Exposure.decode(one.body["inherited"]))
        elif one.type == "step_batch":
            summed.dropped += int(one.body.get("dropped", 0))
    for units in LedgerExposure.of(iter(counting)).units.values():
        summed.rows.update(units)
    summed.rows = +summed.rows
    saved = Exposure.decode(state["exposure"])
    if summed.encode() != saved.encode():
        raise GovernanceBroken(
            "G114",
            f"its counts of rows are not those of the ledger: {saved.encode()}, not "
            f"{summed.encode()}",
            where=where,
            hint="the checkpoint was changed: go on from another one",
        )
