"""OpenSSF model signing: the manifest of a checkpoint's files, and the bundle that signs it.

The manifest is the statement that ``model_signing`` signs (OpenSSF Model Signing Specification
1.0); it is written without that package. The bundle is a Sigstore bundle, made by the package
itself with an elliptic-curve key in PEM, so that ``model_signing verify key`` accepts it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

from hpcdet.errors import ConfigError, UsageError
from hpcdet.policy.statements import STATEMENT_TYPE
from hpcdet.read.exports.governed_model import GovernedModel
from hpcdet.store.config import data_secrets

PREDICATE_TYPE = "https://model_signing/signature/v1.0"
CURVES = ("secp256r1", "secp384r1", "secp521r1")
"""Of keys that it signs with."""
EXTRA = "pip install 'hpcdet[model-signing]'"


def manifest(model: GovernedModel) -> dict[str, Any]:
    """Return the unsigned statement: each file's digest, and that of all digests in order."""
    whole = hashlib.sha256(b"".join(bytes.fromhex(one.sha256) for one in model.files))
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": model.folder.name, "digest": {"sha256": whole.hexdigest()}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "serialization": {
                "method": "files",
                "hash_type": "sha256",
                "allow_symlinks": False,
            },
            "resources": [
                {"name": one.name, "algorithm": "sha256", "digest": one.sha256}
                for one in model.files
            ],
        },
    }


def to_bytes(model: GovernedModel, key: Path | None = None) -> bytes:
    """Return the file: the manifest, or with a key the bundle.

    Raises:
        UsageError: ``model_signing`` is not installed.
        ConfigError: the key is none that it signs with.
    """
    if key is None:
        return json.dumps(manifest(model), indent=1, sort_keys=True).encode() + b"\n"
    try:
        from model_signing import hashing, signing
    except ImportError as error:
        what = f"a signed bundle needs the package model-signing ({error.name} is not there)"
        raise UsageError(what, where="--key", hint=EXTRA) from None
    refuse_other_keys(key)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bundle"
        every = hashing.Config().set_ignored_paths(paths=[], ignore_git_paths=False)
        config = signing.Config().set_hashing_config(every)
        config.use_elliptic_key_signer(private_key=key).sign(model.folder, path)
        return path.read_bytes()


def refuse_other_keys(path: Path) -> None:
    """Refuse what is no elliptic-curve key in PEM, or one that others may read.

    Raises:
        ConfigError: it is; the message holds none of it.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key: object = None
    with contextlib.suppress(TypeError, ValueError, UnsupportedAlgorithm):  # and a password
        text = data_secrets.value("--key", {"file": str(path)}, path)
        key = load_pem_private_key(text.encode(), password=None)
    if not (isinstance(key, EllipticCurvePrivateKey) and key.curve.name in CURVES):
        hint = "openssl ecparam -name prime256v1 -genkey -noout -out FILE"
        what = f"it is no elliptic-curve key in PEM ({', '.join(CURVES)})"
        raise ConfigError(what, where=str(path), hint=hint)
