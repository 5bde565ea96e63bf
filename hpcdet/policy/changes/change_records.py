"""Records of what is changed under a policy, ``EXP/policies/NNNN.json``: signed, each written once.

A record is an in-toto statement in a DSSE envelope of the run key, beside it approvals of others.
It names the policy before it and the digest of the record before it, so that none can be left
out, put in between or taken to another experiment.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hpcdet.errors import IntegrityError
from hpcdet.policy import dsse
from hpcdet.policy.changes.weight_changes import Kind
from hpcdet.policy.codes import GovernanceBroken
from hpcdet.policy.compiled import LARGEST as LARGEST_POLICY
from hpcdet.store.fs import bounded_json, files, typed_fields

if TYPE_CHECKING:  # imported where something is signed only
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SCHEMA = "hpcdet-policy-change/1"
CHANGE = "urn:hpcdet:policy-change:1"
APPROVAL = "urn:hpcdet:policy-approval:1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
LARGEST = 4 * LARGEST_POLICY
"""Bytes of a record's file."""
APPROVALS = 16
"""Approvals that a record may have."""
_BACKUP = "put it back from a backup: what it says was signed, and nothing else can stand for it"
_NEWER = "read it with the hpcdet that wrote it; or put it back from a backup, if it was edited"
NAME = re.compile(r"\d{4,}\.json")

Act = Literal["change", "revoke", "override"]


@dataclass(frozen=True)
class PolicyChange:
    """The statement of a record.

    Attributes:
        number: of its file, from 1.
        run: public run key of the experiment, hex.
        before, after: digests of the policies in effect before and after it.
        previous: SHA-256 of the file before it, hex; "" of the first.
        kind: of a change of policy; whoever reads it finds it out anew.
        by: login name; ``time``: ISO 8601 with its zone: both as the user's machine says.
        policy: of ``change``, the text of a ``policy.json``; ``text``: what it was compiled from.
        source: of ``revoke``, what is withdrawn.
        code: of ``override``, the G code of the check that somebody answers for. It counts for
            checkpoints of attempts that began before the record was written, and for those of
            steps up to ``until``, in batches, whoever made them.
        trial: the one that it is for; 0: all.
    """

    number: int
    act: Act
    experiment: str
    run: str
    before: str
    after: str
    previous: str
    kind: Kind
    reason: str
    by: str
    time: str
    policy: str = ""
    text: str = ""
    source: str = ""
    code: str = ""
    trial: int = 0
    until: int = 0

    def to_bytes(self) -> bytes:
        """The statement that is signed."""
        name = f"{self.experiment}:policies/{self.number:04d}"
        return _statement(name, self.after, CHANGE, dataclasses.asdict(self))


@dataclass(frozen=True)
class PolicyApproval:
    """An approval of a policy in the place of another one.

    It counts once: versions grow with each change and withdrawals are not taken back, so that no
    policy is ever in effect again.

    Attributes:
        policy: digest of the compiled policy; ``before``: of the one in effect that it replaces.
        run: public run key of the one experiment that it is for; "": for any.
        time: ISO 8601 with its zone.
    """

    policy: str
    before: str
    name: str
    version: int
    run: str = ""
    time: str = ""

    def to_bytes(self) -> bytes:
        """The statement that is signed."""
        return _statement(
            f"{self.name}:{self.version}", self.policy, APPROVAL, dataclasses.asdict(self)
        )


@dataclass(frozen=True)
class ChangeFile:
    """A record as it lies in its file.

    Attributes:
        record: envelope of a ``PolicyChange``; ``approvals``: of ``PolicyApproval``.
        digest: SHA-256 of the file, hex.
    """

    record: Mapping[str, Any]
    approvals: tuple[Mapping[str, Any], ...]
    digest: str = ""


def sign(what: PolicyChange | PolicyApproval, key: Ed25519PrivateKey) -> dict[str, Any]:
    """Return the envelope of a record or of an approval."""
    return dsse.sign(PAYLOAD_TYPE, what.to_bytes(), key)


def to_file(record: Mapping[str, Any], approvals: Sequence[Mapping[str, Any]]) -> bytes:
    """The contents of a record's file."""
    whole = {
        "schema": SCHEMA,
        "record": dict(record),
        "approvals": [dict(one) for one in approvals],
    }
    return files.canonical(whole) + b"\n"


def read_file(path: Path) -> ChangeFile:
    """Read a record's file; nothing in it is verified yet.

    Raises:
        GovernanceBroken: it cannot be read or is damaged (G102), or of an unknown version (G101).
    """
    try:
        data = files.read(path, LARGEST)
    except (IntegrityError, OSError) as error:
        what = error.strerror if isinstance(error, OSError) else error.what
        hint = f"see that you may read it: ls -l {path}"
        raise GovernanceBroken("G102", f"cannot read it: {what}", hint=hint) from None
    try:
        found = bounded_json.json_value(data)
    except (ValueError, RecursionError) as error:
        where = f" ({error})" if data else ", but empty"
        raise GovernanceBroken("G102", f"it is no JSON{where}", hint=_BACKUP) from None
    if not isinstance(found, dict):
        raise GovernanceBroken("G102", "it is no record of a change", hint=_BACKUP)
    if (schema := found.get("schema")) != SCHEMA:
        what = f"its version is {schema!r}" if isinstance(schema, str) else "it says no version"
        raise GovernanceBroken("G101", f"{what}, and this hpcdet knows {SCHEMA!r}", hint=_NEWER)
    record, approvals = found.get("record"), found.get("approvals")
    for name, value, kind in (("record", record, dict), ("approvals", approvals, list)):
        if not isinstance(value, kind):
            raise GovernanceBroken("G102", f"it has no {name!r}", hint=_BACKUP)
    assert record is not None
    assert approvals is not None
    mine = tuple(one for one in approvals[:APPROVALS] if isinstance(one, dict))
    return ChangeFile(record, mine, hashlib.sha256(data).hexdigest())


def change_of(envelope: Mapping[str, Any], run: str) -> PolicyChange:
    """Return the statement of a record that the run key has signed.

    Args:
        run: public run key; "": it is not known here, and the one that the record names counts.

    Raises:
        GovernanceBroken: G102: it is damaged, or another key has signed it.
    """
    key = run or str(_predicate(dsse.content(envelope)).get("run"))
    payload = _verified(envelope, [key])
    found: PolicyChange = _build(PolicyChange, payload)
    if found.to_bytes() != payload or found.run != key:
        what = "what is signed is not what `hpcdet policy change` writes"
        raise GovernanceBroken("G102", what, hint=_BACKUP)
    return found


def approvers(
    approvals: Sequence[Mapping[str, Any]],
    change: tuple[str, str],
    run: str,
    keys: Collection[str],
) -> set[str]:
    """Return who of ``keys`` has approved a change for an experiment; others count for nothing.

    Args:
        change: digests of the policies before and after it.
        run: public run key of the experiment.
        keys: public keys, hex, that may approve.
    """
    found: set[str] = set()
    for key in keys:
        for envelope in approvals:
            try:
                payload = _verified(envelope, [key])
                said: PolicyApproval = _build(PolicyApproval, payload)
            except GovernanceBroken:
                continue
            fits = (said.before, said.policy) == change and said.run in ("", run)
            if said.to_bytes() == payload and fits:
                found.add(key)
    return found


def _statement(name: str, digest: str, kind: str, predicate: Mapping[str, Any]) -> bytes:
    subject = {"name": name, "digest": {"sha256": digest.removeprefix("sha256:")}}
    return files.canonical(
        {
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [subject],
            "predicateType": kind,
            "predicate": dict(predicate),
        }
    )


def _verified(envelope: Mapping[str, Any], keys: Collection[str]) -> bytes:
    if envelope.get("payloadType") != PAYLOAD_TYPE:
        raise GovernanceBroken("G102", "it has no signed statement", hint=_BACKUP)
    try:
        return dsse.verify(envelope, keys)
    except GovernanceBroken:
        what = "the experiment's run key has not signed it as it is"
        hint = "it was edited, or is another experiment's: put the right one back from a backup"
        raise GovernanceBroken("G102", what, hint=hint) from None
    except ValueError:  # a key is none
        raise GovernanceBroken("G102", "a public key is not 64 hex digits", hint=_BACKUP) from None


def _predicate(payload: bytes) -> dict[str, Any]:
    try:
        found = json.loads(payload)["predicate"]
    except (KeyError, TypeError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise GovernanceBroken("G102", "its statement is no JSON with a predicate", hint=_BACKUP)
    return found


def _build(kind: type[Any], payload: bytes) -> Any:
    """Build a statement from a payload; the caller compares it with the payload's bytes."""
    try:
        return typed_fields.build(kind, _predicate(payload))
    except (TypeError, ValueError, RecursionError) as error:
        what = f"its statement lacks something, or has what it must not: {error}"
        raise GovernanceBroken("G102", what, hint=_BACKUP) from None
