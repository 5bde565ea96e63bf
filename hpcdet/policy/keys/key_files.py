"""Files with Ed25519 private keys: 64 hex digits, or PEM as OpenSSL writes it; mode 0600."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdet.errors import ConfigError, UsageError
from hpcdet.policy.codes import PolicyRefused
from hpcdet.store.config import data_secrets
from hpcdet.store.fs import files

if TYPE_CHECKING:  # imported where something is signed only
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_HEX = re.compile(r"[0-9a-fA-F]{64}")
_FORMS = "a key is 64 hexadecimal digits, or an Ed25519 key in PEM: hpcdet policy keygen makes one"


def parse(text: str, where: str) -> Ed25519PrivateKey:
    """Return a private key; no message holds any of it.

    Args:
        where: what messages call it.

    Raises:
        PolicyRefused: P10: it is none, or is of another kind, or needs a password.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    text = text.strip()
    if _HEX.fullmatch(text):
        return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(text))
    key: object = None
    if text.startswith("-----BEGIN"):
        try:
            key = load_pem_private_key(text.encode(), password=None)
        except (TypeError, ValueError, UnsupportedAlgorithm):  # their texts may quote the key
            key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise PolicyRefused("P10", "it is no Ed25519 private key", where=where, hint=_FORMS)
    return key


def read(path: Path) -> Ed25519PrivateKey:
    """Return the private key of a file.

    Raises:
        PolicyRefused: P10: it cannot be read, others may read it, or it is no key.
    """
    try:
        text = data_secrets.value(str(path), {"file": str(path)}, path)
    except ConfigError as error:
        raise PolicyRefused("P10", error.what, where=error.where, hint=error.hint) from None
    except UnicodeError:
        raise PolicyRefused(
            "P10", "it is no Ed25519 private key", where=str(path), hint=_FORMS
        ) from None
    return parse(str(text), str(path))


def draw(path: Path) -> str:
    """Make a file with a new private key, readable by its owner only; return the public key, hex.

    Raises:
        UsageError: there is something of that name already.
        OSError: it cannot be written.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    made = not os.path.lexists(path) and files.write_once(
        path, key.private_bytes_raw().hex().encode() + b"\n", 0o600
    )
    if not made:
        what, hint = "it is there already, and a key is never overwritten", "take another name"
        raise UsageError(what, where=str(path), hint=hint)
    return public(key)


def public(key: Ed25519PrivateKey) -> str:
    """The public half of a key, 64 hex digits, as a policy's ``trust`` lists it."""
    return key.public_key().public_bytes_raw().hex()
