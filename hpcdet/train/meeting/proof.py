"""How two sides prove to each other that they know the attempt's secret, without saying it.

HMAC-SHA256 (RFC 2104) as in a challenge and response of three messages: each side has put a nonce
of its own into what the other one proves, and every message names its role and the ranks. So
nothing that was heard can be reflected, replayed or used for another pair.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

BYTES = 32
"""Length of a secret, of a nonce and of a proof: 256 bits."""


def draw() -> bytes:
    """A new secret or nonce, from the system's generator."""
    return secrets.token_bytes(BYTES)


def prove(secret: bytes, role: str, *facts: bytes | int) -> bytes:
    """Return the proof that only holders of the secret can make.

    Args:
        role: who says it, and in which message.
        facts: what it is bound to: nonces of both sides, numbers of ranks.
    """
    made = hmac.new(secret, digestmod=hashlib.sha256)
    for fact in (role.encode(), *facts):
        data = fact.to_bytes(8, "big") if isinstance(fact, int) else fact
        made.update(len(data).to_bytes(4, "big") + data)
    return made.digest()


def is_proven(secret: bytes, said: bytes, role: str, *facts: bytes | int) -> bool:
    """Return True if the other side's proof is right; compared in constant time."""
    return hmac.compare_digest(said, prove(secret, role, *facts))
