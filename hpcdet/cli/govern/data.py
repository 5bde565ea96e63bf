"""``data``: manifests and provenance chains of the data that policies speak of."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

import click

from hpcdet import units
from hpcdet.cli.frame.output import Column, Output, output
from hpcdet.cli.frame.progress import reading
from hpcdet.cli.frame.settings import settings
from hpcdet.cli.govern import croissant
from hpcdet.cli.govern.data_chain import chain_command
from hpcdet.errors import IntegrityError, UsageError
from hpcdet.policy.compiled import CompiledPolicy, DataSource
from hpcdet.policy.provenance import chain_verdicts
from hpcdet.policy.provenance import source_manifests as manifests
from hpcdet.policy.provenance.chains import SourceChain
from hpcdet.policy.provenance.source_manifests import RECORDS, SourceManifest
from hpcdet.read.views.items import OPTIONAL
from hpcdet.store.fs import files

FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)
SHARED = 0o644
"""Mode of manifests: whoever trains on the data reads them, and they hold no secret."""

_CHECKED = (
    Column("OK", "ok"),
    Column("KIND", "kind", cut=False),
    Column("SOURCE", "source"),
    Column("PROBLEM", lambda row: row.problems[0].what if row.problems else "", fold=True),
    Column("DIGEST", "digest", wide=True),
    Column("PATH", "path", wide=True),
)


_WRITTEN = (
    Column("SOURCE", "source"),
    Column("FILES", "files", right=True),
    Column("SIZE", lambda row: units.size(row.bytes), right=True),
    Column("RECORDS", "records", right=True),
    Column("DIGEST", "digest", cut=False),
    Column("PATH", "path", wide=True),
)


@dataclass(frozen=True)
class WrittenManifestView:
    """A manifest that was written."""

    path: str
    """Its file."""
    source: str
    """The source that it is of."""
    digest: str
    """Its Merkle root, which policies name."""
    files: int
    """Files that it lists."""
    bytes: int
    """Bytes of all of them."""
    records: int | None
    """Records that have a digest in FILE.records; null without them."""


@dataclass(frozen=True)
class DataProblemView:
    """A fault of a manifest, its data or a chain."""

    code: str
    """``G111``: it is not what was written; ``G112``: the source may not be used any more;
    ``P06``: there is no chain."""
    what: str
    """The reason."""


@dataclass(frozen=True)
class CheckedDataView:
    """A manifest or a provenance chain that was verified."""

    path: str
    """Its file."""
    kind: Literal["manifest", "chain"]
    """What it is."""
    source: str
    """The source that it is of; "" if it does not say."""
    ok: bool
    """True if nothing is wrong."""
    digest: str
    """Of a manifest its Merkle root, of a chain the digest of its last link."""
    problems: list[DataProblemView]
    """All that is wrong."""
    complete: bool | None = field(default=None, metadata=OPTIONAL)
    """Of a chain: it says, by a trusted key, how the data came to be."""
    links_verified: int | None = field(default=None, metadata=OPTIONAL)
    """Of a chain: links before the first that does not follow the one before it."""
    links_required: int | None = field(default=None, metadata=OPTIONAL)
    """Of a chain: its links, at least one of each required kind."""


@click.group("data", short_help="Make and verify manifests and provenance chains of data.")
def data_command() -> None:
    """Data of policies: manifests of their files, and chains of where they come from.

    \b
    Example: hpcdet data manifest notes/ --source hosp-a --to a.manifest.json
    """


data_command.add_command(chain_command)


@data_command.command("manifest")
@click.argument("folder", type=FOLDER)
@click.option("--source", required=True, metavar="ID", help="What policies call the data.")
@click.option(
    "--records",
    default="",
    metavar="FORMAT",
    help="Digest each record, too: lines, files or bytes:N.",
)
@click.option("--license", "license_", default="", help="Under which license the data are.")
@click.option(
    "--croissant",
    "described",
    type=FILE,
    help="Croissant metadata: compare digests, and take name and license.",
)
@click.option(
    "--to",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    metavar="FILE",
    help="Where the manifest goes; one that is there is replaced.",
)
@output("data.manifest", WrittenManifestView)
def manifest(
    out: Output,
    folder: Path,
    source: str,
    records: str,
    license_: str,
    described: Path | None,
    to: Path,
) -> None:
    """Write the manifest of a folder; -o id prints its Merkle root alone, which policies name.

    Every file is read. With --records each record gets a digest in FILE.records.

    \b
    Example: hpcdet data manifest notes/ --source hosp-a --to a.manifest.json
    """
    if to.resolve().is_relative_to(folder.resolve()):
        hint = "name a file outside of the folder"
        raise UsageError("the manifest would be one of the files", where=str(to), hint=hint)
    if not any(one.is_file() for one in folder.rglob("*")):
        hint = "put the source's files there, or name the folder that has them"
        raise UsageError("there are no files in it", where=str(folder), hint=hint)
    out.expect()
    described_as = croissant.read(described) if described else croissant.Croissant({}, ())
    about = described_as.about | ({"license": license_} if license_ else {})
    sidecar = to.with_name(to.name + RECORDS)
    try:
        with (
            reading(folder, manifests.names(folder)) as watch,
            _draft(sidecar if records else None) as digests,
        ):
            made = manifests.make(
                folder, source, about=about, records=records, sidecar=digests, watch=watch
            )
            described_as.compare(made)
    except ValueError as error:
        raise UsageError(str(error), hint="hpcdet data manifest --help") from None
    below = os.path.relpath(folder.resolve(), to.parent.resolve())
    made = SourceManifest(made.source, made.files, made.about, made.records, below)
    files.replace(to, made.to_bytes(), SHARED)
    count = made.records.count if made.records else None
    size = sum(one.bytes for one in made.files)
    row = WrittenManifestView(str(to), made.source, made.root, len(made.files), size, count)
    out.emit([row], _WRITTEN, key="digest")


@data_command.command("verify")
@click.argument("file", type=FILE, metavar="MANIFEST|CHAIN")
@click.option("--deep", is_flag=True, help="Read all files, not only a sample of them.")
@click.option("--folder", type=FOLDER, help="Where the data are [where the manifest says].")
@click.option("--manifest", "listed", type=FILE, help="Of a chain: the manifest of its data.")
@click.option(
    "--trust", multiple=True, metavar="KEY", help="Of a chain: a public key that may sign, hex."
)
@click.option(
    "--policy",
    "policy_name",
    metavar="FILE|NAME",
    help="Take keys, digests and agreement from a policy.",
)
@output("data.verify", CheckedDataView)
def verify(
    out: Output,
    file: Path,
    deep: bool,
    folder: Path | None,
    listed: Path | None,
    trust: Sequence[str],
    policy_name: str | None,
) -> None:
    """Compare a folder with its manifest, or a chain with its data; exit 9 if anything differs.

    Names and sizes of all files are compared, and the contents of a sample, or all with --deep.

    \b
    Examples: hpcdet data verify a.manifest.json --deep
              hpcdet data verify a.chain --manifest a.json --policy p.yaml
    """
    policy = _policy(policy_name) if policy_name else None
    if _is_manifest(file):
        row = _manifest(file, folder, deep, policy)
    else:
        keys = [*trust, *_keys(policy)]
        if not keys:
            hint = "give --trust KEY, or --policy FILE with keys of role data"
            raise UsageError("no key may sign the chain", where=str(file), hint=hint)
        row = _chain(file, listed, keys, policy)
    out.emit([row], _CHECKED, key="digest")
    if not row.ok:
        for problem in row.problems[1:] if out.for_people else ():
            settings().warn(f"{problem.code}: {problem.what}")
        first = row.problems[0]
        hint = "put it back from a backup; if it changed on purpose, make it anew"
        if first.code == "G112":
            hint = "renew the agreement in the policy, or take the source out of it"
        raise IntegrityError(f"{first.code}: {first.what}", where=str(file), hint=hint)


def _manifest(
    file: Path, folder: Path | None, deep: bool, policy: CompiledPolicy | None
) -> CheckedDataView:
    found = SourceManifest.load(file)
    where = folder or file.parent / found.folder
    with reading(where, manifests.names(where)) as watch:
        wrong = manifests.verify(found, where, deep=deep, watch=watch)
    digests = file.with_name(file.name + RECORDS)
    if deep and found.records and (what := manifests.verify_records(found.records, digests)):
        wrong.append(f"{digests.name}: {what}")
    named = _source(policy, found.source)
    if named and named.manifest and named.manifest.digest != found.root:
        wrong.append(f"its root is not the one that the policy names for {found.source}")
    problems = [DataProblemView("G111", what) for what in wrong]
    return CheckedDataView(str(file), "manifest", found.source, not wrong, found.root, problems)


def _chain(
    file: Path, listed: Path | None, keys: Sequence[str], policy: CompiledPolicy | None
) -> CheckedDataView:
    found = SourceChain.load(file)
    data = SourceManifest.load(listed) if listed else None
    source = data.source if data else ""
    named = _source(policy, source)
    verdict = chain_verdicts.verify(
        found,
        data,
        keys,
        head=named.chain.digest if named and named.chain else "",
        expires=named.agreement.expires if named and named.agreement else "",
    )
    return CheckedDataView(
        str(file),
        "chain",
        source,
        verdict.active,
        verdict.head,
        [DataProblemView(one.code, one.what) for one in verdict.problems],
        verdict.complete,
        verdict.links_verified,
        verdict.links_required,
    )


def _is_manifest(file: Path) -> bool:
    """True for a manifest, which goes over many lines, and not one of a chain, which is one."""
    with files.open_file(file) as opened:
        return opened.read(2) == b"{\n"


def _policy(name: str) -> CompiledPolicy:
    from hpcdet.config.policy.policy_file import read_policy

    return read_policy(name).compiled


def _keys(policy: CompiledPolicy | None) -> list[str]:
    return [one.key for one in policy.trust if one.role == "data"] if policy else []


def _source(policy: CompiledPolicy | None, name: str) -> DataSource | None:
    """Return a source as a policy has it.

    Raises:
        UsageError: the policy does not have it.
    """
    if policy is None:
        return None
    for one in policy.sources:
        if one.id == name:
            return one
    known = ", ".join(one.id for one in policy.sources)
    if not name:
        hint = f"give --manifest FILE, which names one of {known}"
        raise UsageError("a chain does not say of which source it is", where="--policy", hint=hint)
    raise UsageError(f"the policy has no source {name}", where=policy.name, hint=f"it has: {known}")


@contextlib.contextmanager
def _draft(path: Path | None) -> Iterator[BinaryIO | None]:
    """Open a file that gets its name when it is whole; None opens none."""
    if path is None:
        yield None
        return
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with _made(draft) as file:
            yield file
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _made(path: Path) -> Any:
    return open(path, "xb", opener=lambda name, flags: os.open(name, flags, SHARED))
