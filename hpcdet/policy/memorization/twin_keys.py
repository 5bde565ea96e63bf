"""Keys of twins and canaries: coins that a key tosses, and the commitment to it before training."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from hpcdet.policy.codes import PolicyRefused

SHORTEST_KEY = 16
"""Bytes of a key; a shorter one could be found from its commitment."""

_COIN, _COMMITMENT = b"hpcdet-twins/1 coin\0", b"hpcdet-twins/1 commitment\0"


def coin(key: bytes, source: str, pair: int) -> int:
    """Which member of a pair is withheld, 0 or 1: a bit of HMAC-SHA256 under the key.

    Raises:
        PolicyRefused: the key is too short (P10).
    """
    secret = hashlib.sha256(
        _checked(key)
    ).digest()  # HMAC takes keys that differ in final zeros for one
    name = source.encode()
    message = _COIN + len(name).to_bytes(4, "big") + name + pair.to_bytes(8, "big")
    return hmac.digest(secret, message, "sha256")[0] & 1


def commitment(key: bytes) -> str:
    """The commitment to a key, ``sha256:…``, which is recorded before training.

    Raises:
        PolicyRefused: the key is too short (P10).
    """
    return f"sha256:{hashlib.sha256(_COMMITMENT + _checked(key)).hexdigest()}"


def reveals(key: bytes, committed: str) -> bool:
    """True if a key, revealed at the end, is the one that was committed to."""
    return len(key) >= SHORTEST_KEY and hmac.compare_digest(
        commitment(key).encode(), committed.encode()
    )


def void(committed: str, ancestors: Sequence[str]) -> str:
    """Why twins and canaries say nothing of weights with these ancestors; "" if they do.

    Weights that other coins chose the data of may have seen what this key withholds, and have not
    seen its canaries.

    Args:
        committed: the commitment of the experiment.
        ancestors: those of the experiments that its weights come from; "" of one without a key.
    """
    if all(one == committed for one in ancestors):
        return ""
    return "the weights come from training with other twins or canaries, or with none"


def _checked(key: bytes) -> bytes:
    if len(key) < SHORTEST_KEY:
        raise PolicyRefused(
            "P10",
            f"the key of the twins has {len(key)} bytes, and at least {SHORTEST_KEY} are needed",
            where="governance.twin_key",
            hint="leave it out, and one is drawn at submission",
        )
    return key
