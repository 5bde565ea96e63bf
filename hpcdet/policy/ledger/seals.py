"""Seals: the Merkle root of a segment of a ledger, signed; and certificates of the keys that sign.

Both are in-toto statements in DSSE envelopes. A run's key is certified by a key that a policy
trusts (role ``run`` or ``site``), for one experiment and some time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from hpcdet.policy import dsse
from hpcdet.policy.codes import GovernanceBroken
from hpcdet.policy.ledger.records import LedgerHead, LedgerOwner
from hpcdet.store.fs import bounded_json, files

if TYPE_CHECKING:  # imported where something is signed only
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
SEGMENT = "urn:hpcdet:ledger-segment:1"
CERTIFICATE = "urn:hpcdet:run-key:1"
CHECKPOINT = "urn:hpcdet:checkpoint:1"

Signed = Literal["trusted", "self", "none"]


@dataclass(frozen=True)
class Segment:
    """The records ``begin`` to ``end`` of a ledger, and their Merkle root, ``sha256:…``."""

    of: LedgerOwner
    begin: int
    end: int
    root: str

    def to_bytes(self) -> bytes:
        """The statement that is signed."""
        of = self.of
        name = f"{of.experiment}/{of.trial}.{of.attempt}:{self.begin}-{self.end}"
        predicate = {**asdict(of), "begin": self.begin, "end": self.end}
        return _statement(name, self.root.removeprefix("sha256:"), SEGMENT, predicate)


@dataclass(frozen=True)
class Certificate:
    """The statement of a certificate: the key that signs an experiment's ledgers, and when.

    Attributes:
        key: Ed25519 public key, 64 hex digits.
        not_before, not_after: ISO 8601 times with their zone.
    """

    key: str
    experiment: str
    not_before: str
    not_after: str

    def to_bytes(self) -> bytes:
        """The statement that is signed."""
        digest = hashlib.sha256(bytes.fromhex(self.key)).hexdigest()
        return _statement(self.experiment, digest, CERTIFICATE, asdict(self))


@dataclass(frozen=True)
class SealedCheckpoint:
    """A checkpoint of an attempt, as its key signs it before its manifest appears.

    Attributes:
        name: of its folder when it was made.
        digest: of its content, BLAKE3, 64 hex digits.
        governance: digest of its governance state, ``sha256:…``; ``summary``: of what the manifest
            says of that.
        head: the record of the ledger that it was made behind.
    """

    of: LedgerOwner
    name: str
    digest: str
    governance: str
    summary: str
    head: LedgerHead

    def to_bytes(self) -> bytes:
        """The statement that is signed."""
        of = self.of
        name = f"{of.experiment}/{of.trial}:{self.name}"
        said = {
            **asdict(of),
            "name": self.name,
            "governance": self.governance,
            "summary": self.summary,
            "ledger": asdict(self.head),
        }
        return _statement(name, self.digest, CHECKPOINT, said, "blake3")


def _statement(
    name: str, digest: str, kind: str, predicate: Mapping[str, Any], by: str = "sha256"
) -> bytes:
    return files.canonical(
        {
            "_type": STATEMENT_TYPE,
            "subject": [{"name": name, "digest": {by: digest}}],
            "predicateType": kind,
            "predicate": predicate,
        }
    )


def sign(what: Segment | Certificate | SealedCheckpoint, key: Ed25519PrivateKey) -> dict[str, Any]:
    """Return the envelope of a segment's root, a certificate or a checkpoint."""
    return dsse.sign(PAYLOAD_TYPE, what.to_bytes(), key)


def verify_segment(segment: Segment, envelope: Any, key: str) -> None:
    """Refuse an envelope that is not of this segment, by this public key.

    Raises:
        GovernanceBroken: G102.
    """
    if _payload(envelope, [key]) != segment.to_bytes():
        raise GovernanceBroken("G102", "a seal is of other records than it stands behind")


def verify_checkpoint(made: SealedCheckpoint, envelope: Any, key: str) -> None:
    """Refuse an envelope that is not of this checkpoint, by this public key.

    Raises:
        GovernanceBroken: G102.
    """
    if _payload(envelope, [key]) != made.to_bytes():
        raise GovernanceBroken("G102", "the checkpoint's signature is of another state")


def trust_of(opened: Mapping[str, Any], time: str, trust: Collection[str]) -> Signed:
    """Return how far the key of an attempt's ledger is trusted.

    Args:
        opened: body of its ``open`` record.
        time: of that record: a certificate has to hold then.
        trust: public keys, hex, that may sign or certify; empty: nobody is trusted, and a
            signature shows only that one key has signed all of it.

    Raises:
        GovernanceBroken: G102: it is not signed, or not by a key of ``trust``.
    """
    key, given = opened.get("key"), opened.get("certificate")
    if not isinstance(key, str) or not key:
        if trust:
            raise GovernanceBroken("G102", "it is not signed, and the policy names who has to")
        return "none"
    if not trust:
        return "self"
    if key in trust:
        return "trusted"
    if given is None:
        what = f"the key {key[:16]}… is not trusted, and has no certificate"
        hint = "certify it by a key that the policy trusts with role run"
        raise GovernanceBroken("G102", what, hint=hint)
    _certified(key, given, opened, time, trust)
    return "trusted"


def _certified(
    key: str, given: Any, opened: Mapping[str, Any], time: str, keys: Collection[str]
) -> None:
    payload = _payload(given, keys)
    try:
        found = Certificate(**bounded_json.json_value(payload)["predicate"])
        begin, end = (datetime.fromisoformat(one) for one in (found.not_before, found.not_after))
        whole = found.to_bytes() == payload
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise GovernanceBroken("G102", f"its certificate is damaged: {error}") from None
    if not whole or found.key != key or found.experiment != opened.get("experiment"):
        raise GovernanceBroken("G102", "its certificate is of another key or experiment")
    if not files.is_time(found.not_before) or not files.is_time(found.not_after):
        raise GovernanceBroken("G102", "its certificate has times without a zone")
    if not begin <= datetime.fromisoformat(time) <= end:
        raise GovernanceBroken(
            "G102",
            f"its certificate holds from {found.not_before} to {found.not_after}, and the ledger "
            f"was begun at {time}",
            hint="certify the key anew, and look at the clock of the node",
        )


def _payload(envelope: Any, keys: Collection[str]) -> bytes:
    if not isinstance(envelope, dict) or envelope.get("payloadType") != PAYLOAD_TYPE:
        raise GovernanceBroken("G102", "it is no envelope of a statement")
    try:
        return dsse.verify(envelope, keys)
    except ValueError:  # a key is none
        raise GovernanceBroken("G102", "a public key is not 64 hex digits") from None
