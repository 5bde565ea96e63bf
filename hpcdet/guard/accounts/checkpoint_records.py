"""References between a checkpoint and its ledger: digests, and the record between them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from hpcdet.checkpoint import Manifest
from hpcdet.policy.ledger.records import AttemptLedger, LedgerHead, is_head
from hpcdet.store.fs import files

_QUIET = ("seal", "close", "checkpoint")
"""Records that say of no training: what goes on from before them loses nothing."""


def state_root(state: Any) -> str:
    """Return the digest of plain data with arrays, ``sha256:…``; numbers by their bits."""
    return f"sha256:{hashlib.sha256(files.canonical(_exact(state))).hexdigest()}"


def digest_of(summary: Mapping[str, Any]) -> str:
    """Digest of a manifest's block of governance, without its own signature."""
    plain = {name: value for name, value in summary.items() if name != "seal"}
    return f"sha256:{hashlib.sha256(files.canonical(plain)).hexdigest()}"


def head_of(manifest: Manifest) -> LedgerHead | None:
    """The record of a ledger that a checkpoint was made behind; None: it names none."""
    said = manifest.meta.get("governance", {}).get("ledger")
    return LedgerHead(**said) if is_head(said) else None


def settled(earlier: Sequence[AttemptLedger], head: LedgerHead) -> LedgerHead:
    """Return the last record behind a checkpoint's before training goes on."""
    ledger = next((one for one in earlier if one.attempt == head.attempt), None)
    if ledger is None or ledger.hashes[head.seq : head.seq + 1] != (head.hash,):
        return head
    seq = head.seq
    step = ledger.records[seq].step
    for later in ledger.records[seq + 1 :]:
        if later.type not in _QUIET or later.step != step:
            break
        seq += 1
    return LedgerHead(head.attempt, seq, ledger.hashes[seq])


def _exact(value: Any) -> Any:
    """Return plain JSON without floats."""
    if isinstance(value, dict):
        return {str(name): _exact(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_exact(one) for one in value]
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray | np.generic):
        return _exact(value.tolist())
    return value.hex() if isinstance(value, float) else value
