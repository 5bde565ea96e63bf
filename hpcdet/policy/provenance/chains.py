"""Provenance chains: how a source came to be what a trial reads, link by link.

A chain is a file of JSON lines, each a link in canonical form: ``acquire``, then any number of
``transform`` and ``acquire``, ``shard``, ``admit``. Each link has the SHA-256 of the one before. A
signature of the link above it is a line of its own; it is over the bytes that DSSE signs. After
``admit`` only ``revoke`` may come: the owner withdraws the source.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, get_args

from hpcdet.errors import ConfigError
from hpcdet.policy import dsse
from hpcdet.policy.codes import GovernanceBroken
from hpcdet.store.folder import trust
from hpcdet.store.fs import bounded_json, files, typed_fields

LinkKind = Literal["acquire", "transform", "shard", "admit", "revoke"]
KINDS: tuple[LinkKind, ...] = get_args(LinkKind)
REQUIRED = ("acquire", "shard", "admit")
NEXT: Mapping[str, tuple[LinkKind, ...]] = {
    "": ("acquire",),
    "acquire": ("acquire", "transform", "shard"),
    "transform": ("acquire", "transform", "shard"),
    "shard": ("admit",),
    "admit": ("revoke",),
    "revoke": (),
}
"""The kinds of links that may follow each; "": that may be the first."""
PAYLOAD = "application/vnd.hpcdet.chain-link+json"
"""Type of what is signed: a link in canonical form."""
LARGEST = 64 << 20  # bytes of a chain

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_KEY = re.compile(r"[0-9a-f]{64}")
_SIGNATURE = re.compile(r"[0-9a-f]{128}")


@dataclass(frozen=True)
class Artifact:
    """Something that a link made or used, and its digest, ``sha256:…``."""

    name: str
    sha256: str


@dataclass(frozen=True)
class LinkTool:
    """The program that a link ran; "" for what is not known of it."""

    name: str = ""
    version: str = ""
    digest: str = ""


@dataclass(frozen=True)
class ChainLink:
    """A step in a source's history.

    Attributes:
        seq: from 0.
        subject: what it made; ``materials``: of what.
        params_sha256: digest of the parameters of ``tool``; "" without any.
        actor: who did it.
        time: ISO 8601.
        prev: digest of the link before; "" of the first.
    """

    seq: int
    kind: LinkKind
    subject: tuple[Artifact, ...]
    materials: tuple[Artifact, ...] = ()
    tool: LinkTool = LinkTool()
    params_sha256: str = ""
    actor: str = ""
    time: str = ""
    prev: str = ""

    def to_bytes(self) -> bytes:
        """Its canonical form."""
        return files.canonical(asdict(self))

    @property
    def digest(self) -> str:
        return f"sha256:{hashlib.sha256(self.to_bytes()).hexdigest()}"


@dataclass(frozen=True)
class LinkSignature:
    """An Ed25519 signature of a link and the public key, both hex."""

    key: str
    signature: str

    def to_bytes(self) -> bytes:
        """Its canonical form."""
        return files.canonical(asdict(self))

    def is_of(self, link: ChainLink) -> bool:
        """True if the key has signed the link."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.key))
            key.verify(bytes.fromhex(self.signature), _signed_bytes(link))
        except (InvalidSignature, ValueError):
            return False
        return True


@dataclass(frozen=True)
class SourceChain:
    """The links of a chain, and the signatures of each by its place."""

    links: tuple[ChainLink, ...] = ()
    signatures: Mapping[int, tuple[LinkSignature, ...]] = field(default_factory=dict)

    @property
    def head(self) -> str:
        """Digest of the last link; "" of a chain without links."""
        return self.links[-1].digest if self.links else ""

    @staticmethod
    def load(path: Path) -> SourceChain:
        """Read a chain; whether it holds together, ``chain_verdicts`` finds out.

        Raises:
            GovernanceBroken: a line is neither a link nor a signature, in canonical form (G111).
            ConfigError: others than its owner may change it.
            OSError: it is not there, or may not be read.
        """
        with trust.open_trusted(path, "provenance chain", any_owner=True) as file:
            data = files.bounded_read(file, path, LARGEST)
        links: list[ChainLink] = []
        signatures: dict[int, tuple[LinkSignature, ...]] = {}
        for number, line in enumerate(data.splitlines(keepends=True), 1):
            try:
                found = _parse(line)
                if isinstance(found, ChainLink):
                    links.append(found)
                    continue
                place = len(links) - 1
                if place < 0:
                    raise ValueError("it signs nothing")
                signatures[place] = (*signatures.get(place, ()), found)
            except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
                what, hint = f"line {number}: {error}", "put it back from a backup"
                raise GovernanceBroken("G111", what, where=str(path), hint=hint) from None
        return SourceChain(tuple(links), signatures)


def extend(
    chain: SourceChain,
    kind: LinkKind,
    subject: Sequence[Artifact],
    *,
    materials: Sequence[Artifact] | None = None,
    tool: LinkTool | None = None,
    params: bytes | None = None,
    actor: str = "",
    time: str = "",
) -> ChainLink:
    """Return the next link of a chain.

    Args:
        materials: None: what the last link made; of ``acquire`` nothing.
        params: parameters of the tool, of which the digest is kept.
        time: now if not given.

    Raises:
        ConfigError: a link of this kind cannot come here, or has no subject.
    """
    kinds = [link.kind for link in chain.links]
    last = kinds[-1] if kinds else ""
    if kind not in NEXT[last]:
        after = f"after {last}" if last else "at the beginning"
        hint = f"there may be: {', '.join(NEXT[last]) or 'nothing more'}"
        raise ConfigError(f"{kind} cannot come {after}", where="chain", hint=hint)
    if not subject:
        hint = "name it: --subject NAME=sha256:…, --subject FILE or --manifest FILE"
        raise ConfigError("the link makes nothing", where="chain", hint=hint)
    if materials is None:
        materials = () if kind == "acquire" else chain.links[-1].subject
    digest = "" if params is None else f"sha256:{hashlib.sha256(params).hexdigest()}"
    return ChainLink(
        len(kinds),
        kind,
        tuple(subject),
        tuple(materials),
        tool or LinkTool(),
        digest,
        actor,
        time or files.now(),
        chain.head,
    )


def sign(link: ChainLink, private_key: str) -> LinkSignature:
    """Sign a link by 64 hex digits of Ed25519. Raises ``ConfigError`` if the key is none."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    if not _KEY.fullmatch(private_key):
        hint = "a key is 32 bytes as 64 hex digits"
        raise ConfigError("the private key is none of Ed25519", where="key", hint=hint)
    key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(private_key))
    public = key.public_key().public_bytes_raw()
    return LinkSignature(public.hex(), key.sign(_signed_bytes(link)).hex())


def is_digest(text: str) -> bool:
    """True for ``sha256:`` and 64 hex digits."""
    return _DIGEST.fullmatch(text) is not None


def _signed_bytes(link: ChainLink) -> bytes:
    return dsse.encoded(PAYLOAD, link.to_bytes())


def _parse(line: bytes) -> ChainLink | LinkSignature:
    """Return what a line holds. Raises ``ValueError`` if it is not what was written."""
    raw = bounded_json.json_value(line)
    kind: type[ChainLink | LinkSignature] = LinkSignature if "signature" in raw else ChainLink
    found = typed_fields.build(kind, raw)
    # byte for byte: of two equal keys, or another spelling of a text, a reader may take either
    if found.to_bytes() + b"\n" != line:
        raise ValueError("it is not what was written")
    if isinstance(found, LinkSignature):
        if not (_KEY.fullmatch(found.key) and _SIGNATURE.fullmatch(found.signature)):
            raise ValueError("it is no signature of Ed25519")
        return found
    if found.kind not in KINDS:
        raise ValueError(f"{typed_fields.short(found.kind)} is no kind: {', '.join(KINDS)}")
    digests = [one.sha256 for one in (*found.subject, *found.materials)]
    digests += [one for one in (found.params_sha256, found.tool.digest, found.prev) if one]
    if not found.subject or not all(map(is_digest, digests)):
        raise ValueError("a digest is not sha256: and 64 hex digits")
    if not files.is_time(found.time):
        raise ValueError(f"{typed_fields.short(found.time)} is no time")
    return found
