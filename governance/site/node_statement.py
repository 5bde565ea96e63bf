#!/usr/bin/env python3
"""Make the signed statement of a node: which capabilities it enforces, for its present boot.

Run by root on each node, at boot and from a timer; it needs Python 3.9 and `cryptography`, and
nothing of hpcdet. Example:

    node_statement.py keygen /etc/hpcdet/node.key
    node_statement.py make --key /etc/hpcdet/node.key --capability enclave_phi \\
        --check mounts='mountpoint -q /phi' --valid 86400 --out /run/hpcdet/node.dsse

Each check is a shell command. If one fails, the statement there was is removed and none is made:
jobs that need it are then refused on this node, and run elsewhere. The node is not drained.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

PAYLOAD_TYPE = "application/vnd.in-toto+json"
CHECK_S = 60


def main(argv: list[str] | None = None) -> int:
    """Make a key, print its public half, or make a statement; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, about in (
        ("keygen", "make a key that only its owner reads, and print its public half"),
        ("public", "print the public half of a key: governance.statement.key of the site file"),
    ):
        verbs.add_parser(verb, help=about).add_argument("file", type=Path)
    make = verbs.add_parser("make", help="make a statement")
    make.add_argument("--key", type=Path, required=True)
    make.add_argument("--out", type=Path, default=Path("/run/hpcdet/node.dsse"))
    make.add_argument("--node", default=socket.gethostname().partition(".")[0],
                      help="the scheduler's name of this node [the host's short name]")  # fmt: skip
    make.add_argument("--capability", action="append", required=True, metavar="NAME")
    make.add_argument("--check", action="append", default=[], metavar="NAME=COMMAND")
    make.add_argument("--valid", type=int, default=86400, metavar="SECONDS")
    given = parser.parse_args(argv)
    try:
        if given.verb == "keygen":
            _keygen(given.file)
        if given.verb in ("keygen", "public"):
            print(_public(_key(given.file)))
            return 0
        _make(given)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _keygen(path: Path) -> None:
    pem = Ed25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(pem)


def _key(path: Path) -> Ed25519PrivateKey:
    status = path.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        mode = f"{stat.S_IMODE(status.st_mode):04o}"
        raise ValueError(f"{path}: others may read the key (mode {mode}): chmod 600, chown")
    key = load_pem_private_key(path.read_bytes(), password=None)
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError(f"{path}: it is no Ed25519 key")
    return key


def _public(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()


def _make(given: argparse.Namespace) -> None:
    key = _key(given.key)
    given.out.unlink(missing_ok=True)  # what was true before may not be
    checks = dict(_checked(check) for check in given.check)
    now = datetime.now(timezone.utc)  # noqa: UP017 - Python 3.9 has no datetime.UTC
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": given.node, "digest": {"sha256": hashlib.sha256(boot.encode()).hexdigest()}}
        ],
        "predicateType": "urn:hpcdet:node-statement:1",
        "predicate": {
            "node": given.node,
            "boot_id": boot,
            "capabilities": sorted(set(given.capability)),
            "checks": checks,
            "issued": _iso(now),
            "not_after": _iso(now + timedelta(seconds=given.valid)),
        },
    }
    _replace(given.out, _canonical(_envelope(_canonical(statement), key)))


def _checked(check: str) -> tuple[str, str]:
    """Run a check; returns its name and ``ok``. Raises ValueError: it failed."""
    name, equals, command = check.partition("=")
    if not (name and equals and command):
        raise ValueError(f"--check {check}: write NAME=COMMAND")
    try:
        code = subprocess.run(
            ["/bin/sh", "-c", command], stdin=subprocess.DEVNULL, timeout=CHECK_S, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        raise ValueError(f"check {name} did not end in {CHECK_S} s; no statement is made") from None
    if code != 0:
        raise ValueError(f"check {name} failed (exit {code}); no statement is made")
    return name, "ok"


def _envelope(payload: bytes, key: Ed25519PrivateKey) -> dict[str, object]:
    """Sign as DSSE does: the payload's type is signed with it."""
    kind = PAYLOAD_TYPE.encode()
    signed = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
    keyid = hashlib.sha256(bytes.fromhex(_public(key))).hexdigest()
    return {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": PAYLOAD_TYPE,
        "signatures": [{"keyid": keyid, "sig": base64.b64encode(key.sign(signed)).decode()}],
    }


def _canonical(value: object) -> bytes:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode()


def _iso(at: datetime) -> str:
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _replace(path: Path, data: bytes) -> None:
    """Put a file in place as a whole: readers see the old one, none, or this."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=".node-")
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


if __name__ == "__main__":
    sys.exit(main())
