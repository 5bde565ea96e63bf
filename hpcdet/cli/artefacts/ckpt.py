"""``ckpt``: verbs on checkpoints; a process of its own reads the files (the node tower)."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from hpcdet import units
from hpcdet.cli.artefacts import ckpt_archive, named_checkpoints, reading
from hpcdet.cli.frame.ids import id_argument
from hpcdet.cli.frame.output import Column, Output, output
from hpcdet.cli.frame.settings import confirm, settings
from hpcdet.errors import IntegrityError, NotFound, UsageError
from hpcdet.read.experiment import gather, states
from hpcdet.read.lookup import attested_checkpoints, find
from hpcdet.read.views import views
from hpcdet.read.views.checkpoints import CheckpointView
from hpcdet.store.fs import files
from hpcdet.store.objects import store_place
from hpcdet.store.trials import pins
from hpcdet.store.trials.standing import MANIFEST

COLUMNS = (
    Column("TRIAL", "trial", right=True),
    Column("STEP", "step", right=True),
    Column("NAME", "name"),
    Column("STATE", "state", cut=False),
    Column("SIZE", lambda row: units.size(row.bytes), right=True),
    Column("METRIC", "metric", right=True),
    Column("KEPT", "kept"),
    Column("DIGEST", lambda row: row.digest[:16]),
    Column("URL", "url", wide=True),
    Column("PATH", "path", wide=True),
)

FORMATS = ("safetensors", "pt", "hdf5")
_ENDINGS = {".safetensors": "safetensors", ".h5": "hdf5", ".hdf5": "hdf5"} | dict.fromkeys(
    (".pt", ".pth", ".bin"), "pt"
)
_MADE = (
    Column("SIZE", lambda row: units.size(row["bytes"]), right=True),
    Column("DIGEST", lambda row: row["digest"][:16]),
    Column("PATH", "path"),
)
_PINS = (Column("PINNED", "pinned"), Column("PATH", "path"))


@dataclass(frozen=True)
class PinView:
    """A checkpoint that is pinned, or no longer."""

    path: str
    """Its folder."""
    pinned: bool
    """True if it is kept whatever the rules of retention say."""


@dataclass(frozen=True)
class RemovalView:
    """A checkpoint that was removed."""

    path: str
    """Its folder."""
    bytes: int
    """Size of its files."""
    removed: bool
    """False if nothing was done, with ``-n``."""


@click.group("ckpt", short_help="List, verify, export, pin and remove checkpoints.")
def ckpt_command() -> None:
    """Checkpoints: list, verify, digest, export, import, get, archive, pin, remove.

    \b
    Example: hpcdet ckpt ls digits-7f3a/3
    """


ckpt_command.add_command(ckpt_archive.archive)


@ckpt_command.command("ls")
@id_argument()
@click.option("--deleted", is_flag=True, help="Also those that were removed.")
@output("ckpt.ls", CheckpointView)
def ls(out: Output, id: str, deleted: bool) -> None:
    """Checkpoints of an experiment or trial.

    One with a URL (-o wide) is in the experiment's object store, too.

    \b
    Example: hpcdet ckpt ls digits-7f3a -o wide
    """
    found = find.reference(id, settings().root)
    listed = views.checkpoints(found.paths, found.trial, deleted=True)
    rows = [row for row in listed if deleted or row.state != "deleted" or row.url]
    columns = (*COLUMNS, Column("ON", "on")) if found.paths.split else COLUMNS
    out.emit(rows, columns, key="path", empty="no checkpoints")


@ckpt_command.command("digest", short_help="Digests of training states.")
@click.argument("what", nargs=-1, required=True, metavar="PATH|ID...")
@output("ckpt.digest", reading.CheckedView)
def digest(out: Output, what: Sequence[str]) -> None:
    """The digest of the training state: equal for equal states, whatever the files look like.

    \b
    Example: hpcdet ckpt digest EXP/trials/0003/checkpoints/00000300.g2
    """
    rows = reading.run("digest", named_checkpoints.folders(what))
    _refuse_damaged(rows)
    if out.for_people and not out.fields:
        for row in rows:
            click.echo(row.digest if len(rows) == 1 else f"{row.digest}  {row.path}")
        return
    out.emit(rows, (Column("DIGEST", "digest"), Column("PATH", "path")), key="digest")


@ckpt_command.command("verify", short_help="Check checkpoints, byte by byte.")
@click.argument("what", nargs=-1, required=True, metavar="PATH|ID...")
@click.option(
    "--deep/--quick",
    default=True,
    show_default=True,
    help="Read every byte, or only check that manifests, sizes and tables are right.",
)
@output("ckpt.verify", reading.CheckedView)
def verify(out: Output, what: Sequence[str], deep: bool) -> None:
    """Check checkpoints; exit 9 if one is damaged, or made by a newer hpcdet.

    What one of a trial under a policy says of its training is compared with the ledgers of its
    experiment, and its signature is verified. A copy elsewhere has none to be compared with.

    \b
    Example: hpcdet ckpt verify digits-7f3a --deep
    """
    rows = reading.run("verify" if deep else "look", named_checkpoints.folders(what))
    refused = attested_checkpoints.refusals([one.path for one in rows], settings().root)
    rows = [
        replace(one, state="damaged", error=str(refused[one.path]))
        if one.state == "valid" and one.path in refused
        else one
        for one in rows
    ]
    columns = (
        Column("STATE", "state", cut=False),
        Column("PATH", "path", cut=False),
        Column("ERROR", _damage, wide=True),
    )
    out.emit(rows, columns, key="path")
    if out.for_people:
        for row in [row for row in rows if row.error][1:]:  # the first is what this ends with
            settings().warn(f"{row.path}: {_damage(row)}")
    _refuse_damaged(rows)


@ckpt_command.command("export", short_help="Write the weights into one file.")
@named_checkpoints.chosen_options()
@click.option("--format", "form", type=click.Choice(FORMATS), help="[by the file's name].")
@click.option("--all", "whole", is_flag=True, help="All of the shared state, not only weights.")
@click.option(
    "-o", "--out", type=click.Path(path_type=Path, dir_okay=False), required=True, metavar="FILE"
)
def export(
    what: str, step: str | None, which: str, form: str | None, whole: bool, out: Path
) -> None:
    """Write a checkpoint's weights into one file that other programs read.

    \b
    Examples: hpcdet ckpt export digits-7f3a --best -o digits.safetensors
              hpcdet ckpt export model:digits@production -o digits.safetensors
    """
    form = form or _ENDINGS.get(out.suffix.lower())
    if form is None:
        raise UsageError(f"which format is {out.name}", hint=f"give --format {'|'.join(FORMATS)}")
    flags = ["--all"] if whole else []
    folder = named_checkpoints.one(what, step, which)
    row = reading.one(f"exporting {folder.name}", "export", "--format", form, *flags, folder, out)
    settings().note(f"{row['tensors']} tensors of {folder}, {units.size(row['bytes'])}")
    click.echo(row["path"])


@ckpt_command.command("import")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("folder", type=click.Path(path_type=Path), required=False)
@output("ckpt.import")
def import_file(out: Output, file: Path, folder: Path | None) -> None:
    """Make a checkpoint of a file of weights, to begin training from.

    The file is .safetensors, or .pt without code in it. The checkpoint goes to FOLDER, else to the
    file's name with .ckpt, here.

    \b
    Example: hpcdet ckpt import resnet18.pt
    """
    target = folder or Path(f"{file.stem}.ckpt")
    row = reading.one(f"importing {file.name}", "import", file, target)
    out.emit([row], _MADE, key="path")


@ckpt_command.command("get")
@named_checkpoints.chosen_options("ID[/T]|PATH|URL|model:NAME")
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), metavar="FOLDER", help="[its name, here]."
)
@click.option("--store-of", metavar="ID", help="Of a URL: the server and credentials of a config.")
def get(what: str, step: str | None, which: str, out: Path | None, store_of: str | None) -> None:
    """Copy a checkpoint to a folder of yours; every byte is checked.

    It may be one in an object store, by its URL (hpcdet ckpt ls ID -o wide shows them): that is
    found as the store's own tools find it, or by --store-of, an experiment of which it is.

    \b
    Examples: hpcdet ckpt get digits-7f3a/3 --best -o ~/best
              hpcdet ckpt get s3://kept/x-7f3a/trials/0003/checkpoints/00000300.g2
    """
    if store_place.is_url(what):
        if step is not None:
            raise UsageError("a URL is that of one checkpoint", where=what, hint="leave STEP out")
        of = ckpt_archive.store_options(store_of)
        target = out or Path(what.rstrip("/").rpartition("/")[2])
        row = reading.one(f"copying {what}", "get", *of, what, target)
        click.echo(row["path"])
        return
    if store_of is not None:
        raise UsageError("it goes with a URL", where="--store-of")
    source = named_checkpoints.one(what, step, which)
    row = reading.one(f"copying {source.name}", "get", source, out or Path(source.name))
    click.echo(row["path"])


@ckpt_command.command("pin")
@named_checkpoints.chosen_options()
@output("ckpt.pin", PinView)
def pin(out: Output, what: str, step: str | None, which: str) -> None:
    """Keep a checkpoint whatever the rules of retention say.

    \b
    Example: hpcdet ckpt pin digits-7f3a/3 300
    """
    folder = named_checkpoints.one(what, step, which)
    trial = named_checkpoints.trial_of(folder)
    pins.pin(trial, folder.name)
    if not any((place / folder.name / MANIFEST).exists() for place in trial.checkpoint_places):
        pins.unpin(trial, folder.name)
        raise NotFound("the checkpoint has just been removed", where=str(folder))
    _emit_pin(out, folder, True)


@ckpt_command.command("unpin")
@named_checkpoints.chosen_options()
@output("ckpt.unpin", PinView)
def unpin(out: Output, what: str, step: str | None, which: str) -> None:
    """Leave a pinned checkpoint to the rules of retention again.

    \b
    Example: hpcdet ckpt unpin digits-7f3a/3 300
    """
    folder = named_checkpoints.one(what, step, which)
    if not pins.unpin(named_checkpoints.trial_of(folder), folder.name):
        raise NotFound("the checkpoint is not pinned", where=str(folder))
    _emit_pin(out, folder, False)


def _emit_pin(out: Output, folder: Path, pinned: bool) -> None:
    out.emit([PinView(str(folder), pinned)], _PINS, key="path")


@ckpt_command.command("rm", short_help="Remove checkpoints.")
@click.argument("what", nargs=-1, required=True, metavar="PATH|ID...")
@click.option("-n", "--dry-run", is_flag=True, help="Only print what would be removed.")
@output("ckpt.rm", RemovalView)
def rm(out: Output, what: Sequence[str], dry_run: bool) -> None:
    """Remove checkpoints of trials that do not run, from scratch and project storage alike.

    \b
    Example: hpcdet ckpt rm digits-7f3a/3 -n
    """
    folders = named_checkpoints.with_copies(named_checkpoints.folders(what))
    for folder in folders:
        named_checkpoints.refuse_registered(folder)
        _refuse_live(folder)
        _refuse_pinned(folder)
    rows = [RemovalView(str(folder), _bytes(folder), not dry_run) for folder in folders]
    out.expect()
    if not dry_run:
        total = units.size(sum(row.bytes for row in rows))
        confirm(f"remove {units.counted(len(rows), 'checkpoint')} ({total})?")
        for folder in folders:
            _remove(folder)
    columns = (
        Column("REMOVED", "removed"),
        Column("SIZE", lambda row: units.size(row.bytes), right=True),
        Column("PATH", "path"),
    )
    out.emit(rows, columns, key="path")


def _refuse_pinned(folder: Path) -> None:
    with contextlib.suppress(NotFound):
        if folder.name in pins.pinned(named_checkpoints.trial_of(folder)):
            hint = "unpin it first: hpcdet ckpt unpin"
            raise UsageError("the checkpoint is pinned", where=str(folder), hint=hint)


def _refuse_damaged(rows: Sequence[reading.CheckedView]) -> None:
    refused = [row for row in rows if row.state in ("damaged", "newer")]
    if refused:
        hint = "an earlier checkpoint may be whole: hpcdet ckpt verify ID checks all"
        if refused[0].state == "newer":
            hint = "use the version of hpcdet that made the checkpoint, or a later one"
        raise IntegrityError(_damage(refused[0]), where=refused[0].path, hint=hint)


def _damage(row: reading.CheckedView) -> str:
    """Return a damaged checkpoint's error and the file in it, without the path and the hint."""
    said = row.error.partition("\n  hint: ")[0]
    inside = said.removeprefix(row.path)
    return said if inside == said else inside.lstrip("/: ")


def _refuse_live(folder: Path) -> None:
    try:
        found = find.reference(str(folder), settings().root)
    except NotFound:
        return
    gathered = gather.gather(found.paths)
    over = gathered.closed.state if gathered.closed else ""
    of = [trial for trial in gathered.trials if trial.number == found.trial]
    if any(states.trial_state(trial, over) in ("RUNNING", "STOPPING") for trial in of):
        raise UsageError("the trial is running", where=str(found), hint="pause or cancel it first")
    if any(states.trial_state(trial, over) == "PENDING" for trial in of):
        what = "the trial is paused and will continue from its checkpoints"
        raise UsageError(what, where=str(found), hint="pause or cancel it first")


def _remove(folder: Path) -> None:
    """Remove a checkpoint, its commit first, so that an interrupted removal leaves none behind."""
    (folder / MANIFEST).unlink(missing_ok=True)
    files.sync_folder(folder)
    shutil.rmtree(folder)
    files.sync_folder(folder.parent)


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
