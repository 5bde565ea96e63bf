"""References between a checkpoint and its ledger: the digest of a state, and the record."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hpcdet.policy.ledger.records import AttemptLedger, LedgerHead
from hpcdet.store.fs import files

_QUIET = ("seal", "close", "checkpoint")
"""Records that say of no training: what goes on from before them loses nothing."""


def state_root(state: Any) -> str:
    """Return the digest of plain data with arrays, ``sha256:…``; numbers by their bits."""
    return f"sha256:{hashlib.sha256(files.canonical(_exact(state))).hexdigest()}"


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
