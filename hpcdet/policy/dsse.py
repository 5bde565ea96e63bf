"""DSSE envelopes: bytes signed together with their type, so that none passes for another.

What is signed is ``DSSEv1 LEN(type) type LEN(payload) payload`` (secure-systems-lab/dsse, 1.0).
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from hpcdet.policy.codes import GovernanceBroken

if TYPE_CHECKING:  # imported where something is signed or verified only
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def sign(payload_type: str, payload: bytes, key: Ed25519PrivateKey) -> dict[str, Any]:
    """Return the envelope of a payload, with one signature."""
    public = key.public_key().public_bytes_raw()
    signature = key.sign(encoded(payload_type, payload))
    return {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": payload_type,
        "signatures": [
            {
                "keyid": hashlib.sha256(public).hexdigest(),
                "sig": base64.b64encode(signature).decode(),
            }
        ],
    }


def verify(envelope: Mapping[str, Any], public_keys: Iterable[str]) -> bytes:
    """Return the payload of an envelope that one of these keys has signed.

    Whoever reads the payload has to look at ``payloadType``, too, which is signed with it.

    Args:
        public_keys: Ed25519 public keys, 64 hex digits each.

    Raises:
        GovernanceBroken: G102: it is no envelope, or none of the keys has signed it.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        payload = base64.b64decode(envelope["payload"], validate=True)
        signed = encoded(str(envelope["payloadType"]), payload)
        found = [base64.b64decode(one["sig"], validate=True) for one in envelope["signatures"]]
    except (KeyError, TypeError, ValueError) as error:
        raise _no_envelope(error) from None
    keys = [Ed25519PublicKey.from_public_bytes(bytes.fromhex(one)) for one in public_keys]
    for key in keys:
        for signature in found:
            try:
                key.verify(signature, signed)
            except InvalidSignature:
                continue
            return payload
    raise GovernanceBroken("G102", "none of the trusted keys has signed it")


def content(envelope: Mapping[str, Any]) -> bytes:
    """Return the payload of an envelope; its signatures are not verified.

    Raises:
        GovernanceBroken: G102: it is no envelope.
    """
    try:
        return base64.b64decode(envelope["payload"], validate=True)
    except (KeyError, TypeError, ValueError) as error:
        raise _no_envelope(error) from None


def encoded(payload_type: str, payload: bytes) -> bytes:
    """Return the bytes that are signed (PAE)."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def _no_envelope(error: Exception) -> GovernanceBroken:
    lacks = f"it has no {error}" if isinstance(error, KeyError) else str(error)
    return GovernanceBroken("G102", f"it is no DSSE envelope: {lacks}")
