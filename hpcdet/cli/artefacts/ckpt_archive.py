"""``ckpt archive``: copies of checkpoints in object stores, made by hand."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from hpcdet import units
from hpcdet.cli.artefacts import named_checkpoints, reading
from hpcdet.cli.frame.ids import called
from hpcdet.cli.frame.output import Column, Output, output
from hpcdet.cli.frame.progress import busy
from hpcdet.cli.frame.settings import settings
from hpcdet.control.upkeep import store_copies
from hpcdet.errors import NotFound, Unavailable, UsageError
from hpcdet.read.lookup import find
from hpcdet.store.config import resolved_config
from hpcdet.store.folder import trust
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.objects import copy_records, store_place
from hpcdet.store.objects.copy_records import CopyRecords, Whole

COLUMNS = (
    Column("SIZE", lambda row: units.size(row.bytes), right=True),
    Column("COPY OF", "name"),
    Column("URL", "url", cut=False),
)
_WHOLE = {"capsule": "capsule.tar.gz", "report": "report.html"}


@dataclass(frozen=True)
class CopyView:
    """A copy in an object store."""

    name: str
    """The checkpoint as ``TRIAL/NAME``, its folder if it is no experiment's; or capsule, report."""
    url: str
    """Where the copy is."""
    bytes: int
    """Size of its files; 0 of a capsule or report."""


@click.command("archive", short_help="Copy checkpoints to an object store.")
@click.argument("what", nargs=-1, required=True, metavar="ID[/T]|PATH... [URL]")
@click.option("--store-of", metavar="ID", help="Server and credentials are those of its config.")
@output("ckpt.archive", CopyView)
def archive(out: Output, what: Sequence[str], store_of: str | None) -> None:
    """Copy checkpoints to an object store; each object is read again and verified.

    With a URL: checkpoints of IDs, or in PATHs, to that place. The store's own tools say which
    server and credentials are used (AWS_ENDPOINT_URL, ~/.aws, ...), or --store-of.

    Without a URL: what an experiment keeps, its capsule and report, to the store of its config, as
    far as they are not there. That is done by itself, too; this is for what waited.

    \b
    Examples: hpcdet ckpt archive digits-7f3a
              hpcdet ckpt archive digits-7f3a/3 s3://archive/ada
    """
    *named, last = what
    if not store_place.is_url(last):
        if store_of is not None:
            raise UsageError("it goes with a URL", where="--store-of")
        out.emit(_to_own_store(what), COLUMNS, key="url", empty="nothing waits to be copied")
        return
    if not named:
        raise UsageError("no checkpoint is named", where=last, hint="hpcdet ckpt archive ID URL")
    keys = dict(map(_key_of, named_checkpoints.folders(named)))
    pairs = [each for key, folder in keys.items() for each in (str(folder), key)]
    of = store_options(store_of)
    rows = []
    for folder, key in zip(pairs[::2], pairs[1::2], strict=True):
        row = reading.one(f"copying {key}", "archive", *of, "--", last, folder, key)
        rows.append(CopyView(folder, row["url"], row["bytes"]))
    out.emit(rows, COLUMNS, key="url")


def store_options(store_of: str | None) -> list[str]:
    """Return the options of the process that copies for an experiment whose store is meant."""
    if store_of is None:
        return []
    return ["--store-of", str(find.reference(store_of, settings().root).paths.root)]


def _key_of(folder: Path) -> tuple[str, Path]:
    """Return where a checkpoint goes below a URL, and its folder."""
    try:
        found = find.reference(str(folder), settings().root)
    except NotFound:
        return folder.name, folder
    if not found.trial:
        return folder.name, folder
    return copy_records.folder(found.paths.id, (found.trial, folder.name)), folder


def _to_own_store(what: Sequence[str]) -> list[CopyView]:
    rows: list[CopyView] = []
    waits: list[str] = []
    for paths in dict.fromkeys(_with_store(text) for text in what):
        with busy(f"copying what waits of {paths.id}"):
            result = store_copies.by_hand(paths, sys.executable)
        copied = {f"{key[0]}/{key[1]}": one for key, one in CopyRecords.of(paths).copied().items()}
        for name in result.get("copied", []):
            if name in _WHOLE:
                record = Whole.read(CopyRecords.of(paths).whole(_WHOLE[name]))
                rows += [CopyView(name, record.url, 0)] if record is not None else []
            elif name in copied:
                rows.append(CopyView(name, copied[name].url, copied[name].bytes))
        if result["why"]:
            waits.append(f"{paths.id}: {result['why']}")
    if waits:
        raise Unavailable("; ".join(waits), hint="what is there already stays; do it again")
    return rows


def _with_store(text: str) -> ExperimentPaths:
    found = find.reference(text, settings().root)
    if found.trial:
        hint = f"hpcdet ckpt archive {called(found.paths)}, or name a URL"
        raise UsageError("without a URL, all of an experiment is copied", where=text, hint=hint)
    if not resolved_config.load(found.paths.config).checkpoint_storage.remote:
        hint = "name a URL: s3://BUCKET/FOLDER, gs://BUCKET/FOLDER, az://CONTAINER/FOLDER"
        raise UsageError("its config has no object store", where=found.paths.id, hint=hint)
    trust.refuse_anothers(found.paths.root)
    return found.paths
