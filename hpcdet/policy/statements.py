"""Statements of nodes: the capabilities that a node enforces in its present boot.

A statement is an in-toto statement in a DSSE envelope, made by root at boot
(``governance/site/node_statement.py``). It names the node and its boot id, so that one copied from
another node, or kept from before a reboot, does not count. Schedulers advertise features; this is
what a job can verify before it touches code or data.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hpcdet.policy.codes import NODE_REFUSED, GovernanceBroken
from hpcdet.store.fs import bounded_json, files, typed_fields, yaml_bounds

if TYPE_CHECKING:
    from hpcdet.policy.compiled import CompiledPolicy

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:hpcdet:node-statement:1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
LARGEST = 64 * 1024
"""Bytes of a statement's file."""
CLOCKS_S = 300.0
"""Seconds by which the clocks of the signer and of the node may differ."""
_NODE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")
_REPAIR = "an administrator runs governance/site/node_statement.py on the node, as at its boot"


@dataclass(frozen=True)
class NodeStatement:
    """The content of a statement.

    Attributes:
        node: the scheduler's name of the node.
        boot_id: of the boot that it holds for.
        checks: what was looked at when it was made, name to result.
        issued, not_after: ISO 8601 times with their zone.
    """

    node: str
    boot_id: str
    capabilities: tuple[str, ...]
    issued: str
    not_after: str
    checks: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class StatementSource:
    """``governance.statement`` of a site: the file, ``{node}`` in its path, and who signs it."""

    path: str = "/run/hpcdet/node.dsse"
    key: str | None = None
    max_age_s: float = 86400.0


@dataclass(frozen=True)
class NodeDemand:
    """The requirements that a node has to prove.

    Attributes:
        level: ``signed``: by a key of ``keys``; ``declared``: by a file of root's is enough.
        source: None: the site has no statements, and there is nothing to prove here.
        keys: Ed25519 public keys, hex: those of role ``site`` in the policy, else the site's own.
    """

    capabilities: tuple[str, ...]
    level: Literal["declared", "signed"] = "declared"
    source: StatementSource | None = None
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class VerifiedNode:
    """A node that has proved what was demanded.

    Attributes:
        level: how: ``declared`` or ``signed``.
        digest: of the statement's file, ``sha256:…``; "" where there are no statements.
    """

    node: str
    level: Literal["declared", "signed"]
    digest: str = ""
    not_after: str = ""


def demand_of(policy: CompiledPolicy, site: Path) -> NodeDemand | None:
    """Return what a policy demands of nodes; None if nothing.

    Args:
        site: the experiment's ``site.yaml``.

    Raises:
        GovernanceBroken: G121: the site is damaged.
        OSError: it cannot be read.
    """
    needs = policy.on_nodes
    if not needs.capabilities:
        return None
    source = _source(site)
    own = (source.key,) if source is not None and source.key else ()
    trusted = tuple(one.key for one in policy.trust if one.role == "site")
    return NodeDemand(needs.capabilities, needs.statement, source, trusted or own)


def _source(site: Path) -> StatementSource | None:
    try:
        given = (yaml_bounds.mapping(site).get("governance") or {}).get("statement")
        return None if given is None else typed_fields.build(StatementSource, given)
    except (AttributeError, TypeError, ValueError) as error:
        what = f"its governance.statement is damaged: {error}"
        raise GovernanceBroken(NODE_REFUSED, what, where=str(site)) from None


def verify(
    demand: NodeDemand, node: str, *, now: float | None = None, boot_id: str | None = None
) -> VerifiedNode:
    """Verify the node that this process runs on.

    Args:
        node: the scheduler's name of it.
        now: epoch seconds; default: the node's clock.
        boot_id: default: the kernel's.

    Raises:
        GovernanceBroken: G121: it does not attest what is demanded; says what, where, and how to
            repair it.
    """
    source = demand.source
    signed = demand.level == "signed" or (source is not None and source.key is not None)
    if source is None:
        if demand.level == "signed":
            raise _refused("the site has no statements of nodes", "site.yaml: governance.statement")
        return VerifiedNode(node, "declared")
    if not _NODE.fullmatch(node):
        raise _refused(f"{node!r} is no name of a node", "the scheduler's name of this node")
    path = Path(source.path.replace("{node}", node))
    data = _read(path, must_be_root=not signed)
    said = _said(data, demand.keys if signed else None, path)
    now = time.time() if now is None else now
    _refuse_another_node(said, node, boot_id, path)
    _refuse_another_time(said, now, source.max_age_s, path)
    if lacks := sorted(set(demand.capabilities) - set(said.capabilities)):
        raise _refused(f"node {node} does not attest {', '.join(lacks)}", str(path))
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    return VerifiedNode(node, "signed" if signed else "declared", digest, said.not_after)


def _refused(what: str, where: str, hint: str = _REPAIR) -> GovernanceBroken:
    return GovernanceBroken(NODE_REFUSED, what, where=where, hint=hint)


def _read(path: Path, *, must_be_root: bool) -> bytes:
    """Return the file's bytes; what is checked is the file that was opened.

    Args:
        must_be_root: nobody signs it, so that its owner is all there is to trust.
    """
    try:
        # no link: one of a user's could lead to any file of root's that holds what he wrote
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise _refused(f"no statement can be read: {error.strerror}", str(path)) from None
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise _refused("the statement is no plain file", str(path))
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            mode = f"{stat.S_IMODE(status.st_mode):04o}"
            what = f"others than its owner may change the statement (mode {mode})"
            raise _refused(what, str(path), f"chmod go-w {path}")
        if must_be_root and status.st_uid != 0:
            what = f"the statement is unsigned and belongs to user {status.st_uid}, not to root"
            raise _refused(what, str(path))
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise _refused(f"the statement has more than {LARGEST} bytes", str(path))
    return data


def _said(data: bytes, keys: Sequence[str] | None, path: Path) -> NodeStatement:
    """Return the statement in an envelope. ``keys``: None if its signature does not matter."""
    from hpcdet.policy import dsse  # its library is slow to import, and needed here only

    try:
        envelope = bounded_json.json_value(data)
        if envelope["payloadType"] != PAYLOAD_TYPE:
            raise ValueError("it is of another type")
        if keys is None:
            return parse(base64.b64decode(envelope["payload"], validate=True))
        return parse(dsse.verify(envelope, keys))
    except GovernanceBroken as error:
        what = f"no trusted key has signed the statement ({error.what})"
        raise _refused(what, str(path)) from None
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise _refused(f"the statement is damaged: {error}", str(path)) from None


def payload(statement: NodeStatement) -> bytes:
    """Return the bytes that are signed: an in-toto statement about the node."""
    boot = hashlib.sha256(statement.boot_id.encode()).hexdigest()
    return files.canonical(
        {
            "_type": STATEMENT_TYPE,
            "subject": [{"name": statement.node, "digest": {"sha256": boot}}],
            "predicateType": PREDICATE_TYPE,
            "predicate": {
                "node": statement.node,
                "boot_id": statement.boot_id,
                "capabilities": list(statement.capabilities),
                "checks": dict(statement.checks),
                "issued": statement.issued,
                "not_after": statement.not_after,
            },
        }
    )


def parse(data: bytes) -> NodeStatement:
    """Return the statement in the bytes that were signed.

    Raises:
        ValueError: they hold no statement of a node, or not one that is written in one way only.
    """
    value: Any = bounded_json.json_value(data)
    if not isinstance(value, dict) or value.get("predicateType") != PREDICATE_TYPE:
        raise ValueError("it is no statement of a node")
    if not isinstance(value.get("predicate"), dict):
        raise ValueError("it has no predicate")
    try:
        found = typed_fields.build(NodeStatement, value["predicate"])
    except TypeError as error:
        raise ValueError(str(error).partition("() ")[2]) from None
    # a duplicate or unknown key, another subject or type: two readers might read two things
    if payload(found) != data:
        raise ValueError("it is not written canonically")
    return found


def _refuse_another_node(said: NodeStatement, node: str, boot_id: str | None, path: Path) -> None:
    if said.node != node:
        raise _refused(f"the statement is of node {said.node}, and this is {node}", str(path))
    boot_id = BOOT_ID.read_text().strip() if boot_id is None else boot_id
    if said.boot_id != boot_id:
        what = f"the statement is of another boot of {node} ({said.boot_id}; now {boot_id})"
        raise _refused(what, str(path))


def _refuse_another_time(said: NodeStatement, now: float, max_age_s: float, path: Path) -> None:
    issued, not_after = _epoch("issued", said, path), _epoch("not_after", said, path)
    if issued > now + CLOCKS_S:
        raise _refused(
            f"the statement is issued at {said.issued}, {issued - now:.0f} s ahead of this clock",
            str(path),
            "set the clocks of the node and of the signer right, then make the statement anew",
        )
    if now > not_after:
        raise _refused(f"the statement ended at {said.not_after}", str(path))
    if now - issued > max_age_s:
        what = f"the statement is {now - issued:.0f} s old; the site allows {max_age_s:.0f} s"
        raise _refused(what, str(path))


def _epoch(name: Literal["issued", "not_after"], said: NodeStatement, path: Path) -> float:
    text = getattr(said, name)
    if not files.is_time(text):
        raise _refused(f"the statement's {name} is {text!r}, which is no time", str(path))
    return datetime.fromisoformat(text).timestamp()
