"""``data chain``: provenance chains made, extended, signed and shown."""

from __future__ import annotations

import getpass
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from hpcdet.cli.frame.output import Column, Output, output
from hpcdet.errors import NotFound, UsageError
from hpcdet.policy.provenance import chains
from hpcdet.policy.provenance.chains import (
    KINDS,
    Artifact,
    ChainLink,
    LinkKind,
    LinkTool,
    SourceChain,
)
from hpcdet.policy.provenance.source_manifests import SourceManifest
from hpcdet.store.config import data_secrets
from hpcdet.store.fs import files

FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
_SHARED = 0o644
_LINKS = (
    Column("SEQ", "seq", right=True),
    Column("KIND", "kind", cut=False),
    Column("SUBJECT", lambda row: ", ".join(one.name for one in row.subject)),
    Column("TOOL", "tool"),
    Column("ACTOR", "actor"),
    Column("TIME", "time"),
    Column("SIGNED", lambda row: ", ".join(key[:8] for key in row.signed_by)),
    Column("DIGEST", "digest", wide=True),
)

_SIGNED = (
    Column("SEQ", "seq", right=True),
    Column("KIND", "kind", cut=False),
    Column("KEY", "key", cut=False),
    Column("DIGEST", "digest", wide=True),
    Column("PATH", "path", wide=True),
)


@dataclass(frozen=True)
class ArtifactView:
    """Something that a link made or used."""

    name: str
    """Its name."""
    sha256: str
    """Its digest."""


@dataclass(frozen=True)
class ChainLinkView:
    """A link of a provenance chain."""

    seq: int
    """Its place, from 0."""
    kind: str
    """``acquire``, ``transform``, ``shard``, ``admit`` or ``revoke``."""
    subject: list[ArtifactView]
    """What it made."""
    materials: list[ArtifactView]
    """Of what."""
    tool: str
    """The program that ran, with its version; "" if it does not say."""
    actor: str
    """Who did it."""
    time: str
    """When."""
    digest: str
    """Its digest; that of ``admit`` is what policies name."""
    signed_by: list[str]
    """Public keys whose signatures are valid; whether they are trusted, a policy says."""


@dataclass(frozen=True)
class SignedLinkView:
    """A link of a provenance chain that was signed."""

    seq: int
    """Its place, from 0."""
    kind: str
    """``acquire``, ``transform``, ``shard``, ``admit`` or ``revoke``."""
    digest: str
    """Its digest."""
    key: str
    """The public key that has signed it, 64 hex digits, as a policy's ``trust`` lists it."""
    path: str
    """The file of the chain."""


@click.group("chain", short_help="Make, extend, sign and show provenance chains.")
def chain_command() -> None:
    """Provenance chains: where the data of a source come from.

    \b
    Example: hpcdet data chain add hosp-a.chain acquire --subject export.csv
    """


@chain_command.command("add")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("kind", type=click.Choice(KINDS))
@click.option("--subject", multiple=True, metavar="FILE|NAME=DIGEST", help="What it made.")
@click.option("--material", multiple=True, metavar="FILE|NAME=DIGEST", help="Of what [the last].")
@click.option("--manifest", type=FILE, help="Of shard and admit: the manifest of what was made.")
@click.option("--tool", default="", metavar="NAME[:VERSION]", help="The program that ran.")
@click.option("--params", type=FILE, help="Its parameters; their digest is kept.")
@click.option("--actor", default="", help="Who did it [the user].")
@output("data.chain.add", ChainLinkView)
def add(
    out: Output,
    file: Path,
    kind: LinkKind,
    subject: Sequence[str],
    material: Sequence[str],
    manifest: Path | None,
    tool: str,
    params: Path | None,
    actor: str,
) -> None:
    """Add a link to a chain; the first one makes it. -o id prints the link's digest alone.

    KIND is acquire, then transform as often as needed, shard, admit; revoke withdraws the source.

    \b
    Examples: hpcdet data chain add a.chain transform --subject clean.csv --tool dedupe:1.2
              hpcdet data chain add a.chain admit --manifest a.manifest.json
    """
    out.expect()
    chain = SourceChain.load(file) if file.exists() else SourceChain()
    made = [_artifact(text) for text in subject]
    if manifest is not None:
        listed = SourceManifest.load(manifest)
        made.append(Artifact(listed.source, listed.root))
    if kind == "revoke" and not made and chain.links:
        made = list(chain.links[-1].subject)
    name, _, version = tool.partition(":")
    link = chains.extend(
        chain,
        kind,
        made,
        materials=[_artifact(text) for text in material] or None,
        tool=LinkTool(name, version),
        params=files.read(params) if params else None,
        actor=actor or getpass.getuser(),
    )
    _append(file, link.to_bytes())
    out.emit([_view(chain, len(chain.links), link)], _LINKS, key="digest")


@chain_command.command("sign")
@click.argument("file", type=FILE)
@click.option("--key", type=FILE, required=True, help="The private key, 64 hex digits.")
@output("data.chain.sign", SignedLinkView)
def sign(out: Output, file: Path, key: Path) -> None:
    """Sign the last link of a chain; -o id prints the public key alone, which policies list.

    \b
    Example: hpcdet data chain sign hosp-a.chain --key ~/steward.key
    """
    out.expect()
    chain = SourceChain.load(file)
    if not chain.links:
        hint = "add one: hpcdet data chain add FILE acquire"
        raise NotFound("the chain has no link", where=str(file), hint=hint)
    private = data_secrets.value("--key", {"file": str(key)}, key)
    signature = chains.sign(chain.links[-1], private)
    _append(file, signature.to_bytes())
    link = chain.links[-1]
    row = SignedLinkView(link.seq, link.kind, link.digest, signature.key, str(file))
    out.emit([row], _SIGNED, key="key")


@chain_command.command("show")
@click.argument("file", type=FILE)
@output("data.chain.show", ChainLinkView)
def show(out: Output, file: Path) -> None:
    """Show the links of a chain; data verify verifies them.

    \b
    Example: hpcdet data chain show hosp-a.chain -o wide
    """
    chain = SourceChain.load(file)
    rows = [_view(chain, place, link) for place, link in enumerate(chain.links)]
    out.emit(rows, _LINKS, key="digest", empty="no links")


def _view(chain: SourceChain, place: int, link: ChainLink) -> ChainLinkView:
    return ChainLinkView(
        link.seq,
        link.kind,
        [ArtifactView(one.name, one.sha256) for one in link.subject],
        [ArtifactView(one.name, one.sha256) for one in link.materials],
        " ".join(text for text in (link.tool.name, link.tool.version) if text),
        link.actor,
        link.time,
        link.digest,
        [one.key for one in chain.signatures.get(place, ()) if one.is_of(link)],
    )


def _artifact(text: str) -> Artifact:
    """Return what ``NAME=sha256:…`` or the path of a file names.

    Raises:
        UsageError: it is neither.
    """
    name, equals, digest = text.rpartition("=")
    if equals and chains.is_digest(digest):
        return Artifact(name, digest)
    path = Path(text)
    if not path.is_file():
        hint = "give the path of a file, or NAME=sha256:…"
        raise UsageError("it is no file, and no digest", where=text, hint=hint)
    with files.open_file(path) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
        return Artifact(path.name, f"sha256:{digest}")


def _append(path: Path, line: bytes) -> None:
    """Add a line to a chain, as a whole."""
    before = files.read(path, chains.LARGEST) if path.exists() else b""
    files.replace(path, before + line + b"\n", _SHARED)
