"""A checkpoint beside the ledgers that it was made with: checks 2 to 6, and 14 by the ledger."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from hpcdet.checkpoint import Manifest
from hpcdet.checkpoint.format import remove
from hpcdet.checkpoint.format.manifest import position
from hpcdet.guard.accounts.checkpoint_records import settled, state_root
from hpcdet.guard.counting.exposure import Exposure
from hpcdet.guard.resume.resume_verdicts import NO_OVERRIDES, Check, Overrides, State
from hpcdet.policy.codes import GovernanceBroken
from hpcdet.policy.ledger.attested import (
    AttestedCheckpoint,
    CheckpointClaim,
    LedgerCounts,
    attested,
    head_of,
)
from hpcdet.policy.ledger.paths import lost_by
from hpcdet.policy.ledger.records import AttemptLedger
from hpcdet.store.folder.layout import CHECKPOINT_NAME

_BAD = re.compile(rf"{re.escape(remove.BAD)}({CHECKPOINT_NAME.pattern})")
_KEYLESS = "the run has no key"


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
    claim = CheckpointClaim.of(folder, manifest.name, manifest.digest, manifest.meta)
    found = attested(claim, ledgers, trust, trial=trial, root=state_root(state))
    head, verified = found.head, found.verified
    checks = [
        Check(2, "G102", "passed") if found.signed else Check(2, "G102", "unknown", _KEYLESS),
        Check(3, "G103", *_older(folder)),
        Check(4, "G104", "passed", f"{verified.records} records, {verified.unsealed} unsealed"),
        Check(5, "G105", "passed", f"attempt {head.attempt}, record {head.seq}"),
    ]
    try:
        _same_sums(state, found, str(folder))
    except GovernanceBroken as error:
        return [*checks, overrides.settle(14, error)]
    return [*checks, Check(14, "G114", "passed", "by the ledger")]


def undone(manifest: Manifest, ledgers: Sequence[AttemptLedger]) -> Check:
    """Return the check that records which training an attempt undoes as it goes on."""
    head = head_of(manifest.meta.get("governance") or {})
    accepts = None if head is None else settled(ledgers, head)
    lost = lost_by(ledgers, accepts)
    said = "; ".join(f"attempt {one[0]}, records {one[1]} to {one[2]}" for one in lost)
    return Check(6, "G106", "recorded" if lost else "passed", said)


def _older(folder: Path) -> tuple[str, str]:
    """Whether newer checkpoints were set aside, since they are torn."""
    step, attempt = position(folder.name)
    aside = [_BAD.match(path.name) for path in remove.aside(folder.parent)]
    torn = {one[1] for one in aside if one and int(one[2]) > step and int(one[3]) >= attempt > 0}
    return ("recorded", f"torn: {', '.join(sorted(torn))}") if torn else ("passed", "")


def _same_sums(state: State, found: AttestedCheckpoint, where: str) -> None:
    """The rows that the checkpoint has counted are those that the records count (G114)."""
    summed = LedgerCounts.up_to(found.ledgers, found.head).encode()
    saved = Exposure.decode(state["exposure"]).encode()
    if summed != saved:
        raise GovernanceBroken(
            "G114",
            f"its counts of rows are not those of the ledger: {saved}, not {summed}",
            where=where,
            hint="the checkpoint was changed: go on from another one",
        )
