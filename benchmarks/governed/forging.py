"""Forgeries of governed trials by somebody who has the run's key: only what is wrong is wrong.

A checkpoint is written again with another state, and its ledger is chained and signed again, so
that each check has to find by itself what it is about.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hpcdet import checkpoint
from hpcdet.checkpoint import LoadedState
from hpcdet.guard.accounts.checkpoint_records import state_root
from hpcdet.policy.ledger import records, seals
from hpcdet.policy.ledger.attested import digest_of
from hpcdet.policy.ledger.records import LedgerHead, LedgerOwner
from hpcdet.policy.merkle import Merkle
from hpcdet.store.folder.layout import TrialPaths

Change = Callable[[dict[str, Any]], Any]


def nothing(_: dict[str, Any]) -> None:
    """Change nothing."""


def newest(trial: TrialPaths) -> LoadedState:
    """The newest checkpoint of a trial."""
    [*_, last] = sorted(path for path in trial.checkpoints.glob("*.g*") if path.name[0] != ".")
    return checkpoint.load(last)


def forge(
    trial: TrialPaths,
    key: Ed25519PrivateKey,
    state: Change = nothing,
    *,
    said: Change = nothing,
    record: Change = nothing,
) -> None:
    """Write the newest checkpoint and the ledger of the first attempt again.

    Args:
        state: changes the shared state; ``said``: what the manifest says of governance.
        record: changes each record of the ledger, as plain data; one without a type is left out.
    """
    loaded = newest(trial)
    manifest, shared = loaded.manifest, loaded.shared
    state(shared)
    told = {k: v for k, v in manifest.meta["governance"].items() if k != "seal"}
    said(told)
    told["root"] = state_root(shared["governance"])

    def mine(one: dict[str, Any]) -> None:
        record(one)
        if one["type"] == "checkpoint" and one["body"]["name"] == manifest.name:
            one["body"]["root"] = told["root"]

    hashes = chain_again(trial, key, mine)
    head = LedgerHead(**told["ledger"])
    head = dataclasses.replace(head, hash=hashes[head.seq])
    told["ledger"] = dataclasses.asdict(head)
    owner = LedgerOwner(trial.root.parent.parent.name, trial.number, head.attempt)

    def attest(digest: str, meta: Any) -> Any:
        made = seals.SealedCheckpoint(
            owner, manifest.name, digest, told["root"], digest_of(told), head
        )
        return {**meta, "governance": {**told, "seal": seals.sign(made, key)}}

    shutil.rmtree(loaded.folder)
    checkpoint.save(loaded.folder, shared, loaded.private, meta=manifest.meta, attest=attest)


def chain_again(trial: TrialPaths, key: Ed25519PrivateKey, change: Change) -> list[str]:
    """Chain and sign the ledger of the first attempt again; returns the hashes of its records."""
    path = trial.attempt(1).ledger
    read = records.read(1, path)
    assert read is not None
    hashes: list[str] = []
    lines: list[bytes] = []
    tree, begin = Merkle(), 0
    first = read.records[0].body
    owner = LedgerOwner(str(first["experiment"]), int(first["trial"]), 1)
    for one in read.records:
        plain = dataclasses.asdict(one)
        plain["body"] = dict(plain["body"])
        change(plain)
        if not plain["type"]:
            continue
        seq = len(hashes)
        if one.type == "seal":
            part = seals.Segment(owner, begin, seq - 1, tree.root)
            plain["body"] = {
                "begin": begin,
                "end": seq - 1,
                "root": part.root,
                "dsse": seals.sign(part, key),
            }
        prev = hashes[-1] if hashes else ""
        made = dataclasses.replace(one, seq=seq, body=plain["body"], prev=prev)
        line, digest = records.line(made)
        lines.append(line)
        hashes.append(digest)
        if one.type == "seal":
            tree, begin = Merkle(), seq + 1
        else:
            tree.add(made.to_bytes())
    path.write_bytes(b"".join(lines))
    return hashes
