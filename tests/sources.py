"""Sources with data, manifests and signed provenance chains, as policies name them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hpcdet.policy.compiled import DataSource, FileDigest, TrustedKey
from hpcdet.policy.provenance import chains, source_manifests
from hpcdet.policy.provenance.chains import Artifact, SourceChain
from hpcdet.policy.provenance.source_manifests import RECORDS, SourceManifest

KEY = "11" * 32
PUBLIC = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(KEY)).public_key().public_bytes_raw()
STEWARD = TrustedKey("steward", "data", PUBLIC.hex())
KINDS = ("acquire", "shard", "admit")


def provided(
    folder: Path,
    name: str,
    contents: Mapping[str, bytes],
    *,
    records: str = "",
    kinds: tuple[str, ...] = KINDS,
    key: str = KEY,
) -> DataSource:
    """Write data of a source with their manifest and chain, and return what a policy says of it.

    Args:
        folder: the model's; names of the files begin with the source's.
        contents: of the data's files.
        records: format of records, as of ``data manifest``.
        kinds: of the chain's links.
        key: that signs the last one; "": none does.
    """
    data = folder / "data" / name
    for file, text in contents.items():
        (data / file).parent.mkdir(parents=True, exist_ok=True)
        (data / file).write_bytes(text)
    listed = folder / f"{name}.manifest.json"
    with open(f"{listed}{RECORDS}", "wb") as sidecar:
        made = source_manifests.make(data, name, records=records, sidecar=sidecar)
    manifest = SourceManifest(name, made.files, made.about, made.records, f"data/{name}")
    listed.write_bytes(manifest.to_bytes())
    chain = SourceChain()
    for kind in kinds:
        subject = Artifact(name, manifest.root)
        link = chains.extend(chain, kind, [subject], actor="ada")  # type: ignore[arg-type]
        chain = SourceChain((*chain.links, link))
    lines = [link.to_bytes() for link in chain.links]
    if key:
        lines.append(chains.sign(chain.links[-1], key).to_bytes())
    (folder / f"{name}.chain").write_bytes(b"".join(line + b"\n" for line in lines))
    head = next((one.digest for one in chain.links if one.kind == "admit"), chain.head)
    return DataSource(
        name,
        manifest=FileDigest(listed.name, manifest.root),
        chain=FileDigest(f"{name}.chain", head),
    )
