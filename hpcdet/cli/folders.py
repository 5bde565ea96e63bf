"""``move``, ``archive`` and ``rm``: whole experiments, which must not be alive."""

from __future__ import annotations

import errno
import os
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path

import click

from hpcdet.cli import words
from hpcdet.cli.bulk import each
from hpcdet.cli.ids import id_argument, ids_argument
from hpcdet.cli.output import Column, Output, output
from hpcdet.cli.progress import busy
from hpcdet.cli.settings import confirm, settings
from hpcdet.errors import IntegrityError, UsageError
from hpcdet.read import find, gather, states
from hpcdet.store import files
from hpcdet.store.layout import ExperimentPaths

COLUMNS = (Column("ID", "id"), Column("TO", "path"), Column("WHAT", "what"))
NOT_ARCHIVED = ("secrets.json", "index.sqlite")
"""Secrets are nobody else's, and the index is derived."""


def refuse_live(paths: ExperimentPaths) -> None:
    """Raise UsageError while anything may still write into the folder."""
    gathered = gather.gather(paths)
    if gathered.closed is not None:
        return
    state, _ = states.experiment_state(gathered)
    workers = any(worker.end is None for worker in gathered.workers)
    jobs = any(job.submitted and job.submitted.job for job in gathered.jobs)
    if workers or (jobs and state != "PAUSED"):
        raise UsageError(
            f"it is alive ({state})", where=paths.id, hint=f"hpcdet cancel {paths.id} --wait"
        )


def total_bytes(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


@click.command("move", short_help="Move an experiment's folder.")
@id_argument()
@click.argument("to", type=click.Path(path_type=Path))
@click.option("-n", "--dry-run", is_flag=True, help="Only say what would be done.")
@output("move")
def move_command(out: Output, id: str, to: Path, dry_run: bool) -> None:
    """Move an experiment that has ended or is paused: into the folder TO, or to that new path.

    \b
    Example: hpcdet move digits-7f3a /project/ada/kept
    """
    paths = find.experiment(id, settings().root)
    refuse_live(paths)
    to = to.expanduser().absolute()
    target = to / paths.id if to.is_dir() else to
    if target.exists():
        raise UsageError("there is something already", where=str(target))
    if not target.parent.is_dir():
        raise UsageError("no such folder", where=str(target.parent))
    if not dry_run:
        with busy(f"moving {paths.id}"):
            _move(paths.root, target)
    item = {"id": target.name, "path": str(target), "dry_run": dry_run}
    what = "would be moved" if dry_run else "moved"
    out.emit([{**item, "what": what}], COLUMNS)


def _move(source: Path, target: Path) -> None:
    """Rename; to another file system, copy whole, then let the original go."""
    try:
        source.rename(target)
        return
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(source, partial, symlinks=True)
    if total_bytes(partial) != total_bytes(source):
        raise IntegrityError("the copy is not whole; the original is untouched", where=str(partial))
    partial.rename(target)
    files.sync_folder(target.parent)
    shutil.rmtree(source)


@click.command("archive", short_help="Pack an ended experiment into one file.")
@id_argument()
@click.option("--out", "target", type=click.Path(path_type=Path), help="The file [ROOT/ID.tar.gz].")
@click.option("--remove", is_flag=True, help="Remove the folder once the file is complete.")
@click.option("-n", "--dry-run", is_flag=True, help="Only say what would be done.")
@output("archive")
def archive_command(out: Output, id: str, target: Path | None, remove: bool, dry_run: bool) -> None:
    """Pack an experiment into one file; unpacked under a root, it is valid again.

    Literal secrets are left out.

    \b
    Example: hpcdet archive digits-7f3a --out digits.tar.gz
    """
    paths = find.experiment(id, settings().root)
    refuse_live(paths)
    file = target or paths.root.with_name(f"{paths.id}.tar.gz")
    if file.exists():
        raise UsageError("there is something already", where=str(file))
    if not dry_run:
        if remove:
            confirm(f"remove {paths.root} after packing it?")
        with busy(f"packing {paths.id}"):
            _pack(paths, file)
        if remove:
            _remove(paths)
    size = 0 if dry_run else file.stat().st_size
    what = "would be packed" if dry_run else f"packed, {words.size(size)}"
    item = {"id": paths.id, "path": str(file), "bytes": size, "what": what, "dry_run": dry_run}
    out.emit([{**item, "removed": remove and not dry_run}], COLUMNS)


def _pack(paths: ExperimentPaths, file: Path) -> None:
    partial = file.with_name(f".{file.name}.partial")
    try:
        with tarfile.open(partial, "w:gz") as tar:
            tar.add(
                paths.root,
                arcname=paths.id,
                filter=lambda info: None if Path(info.name).name in NOT_ARCHIVED else info,
            )
        with tarfile.open(partial) as tar:
            names = set(tar.getnames())
        if f"{paths.id}/{paths.config.name}" not in names:
            raise IntegrityError("the archive is not whole", where=str(partial))
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        partial.chmod(files.FILE_MODE)
        partial.rename(file)
    finally:
        partial.unlink(missing_ok=True)


@click.command("rm", short_help="Remove ended experiments.")
@ids_argument()
@click.option("-n", "--dry-run", is_flag=True, help="Only say what would go.")
@output("rm")
def rm_command(out: Output, ids: Sequence[str], dry_run: bool) -> None:
    """Remove experiments that have ended, with their checkpoints, for good.

    \b
    Example: hpcdet rm digits-7f3a -n
    """
    if not dry_run:
        found = [find.experiment(id, settings().root) for id in ids]
        total = words.size(sum(total_bytes(paths.root) for paths in found))
        confirm(f"remove {len(found)} experiments ({total}) for good?")

    def act(found: find.Reference) -> str:
        if found.trial:
            raise UsageError("only whole experiments can be removed", where=str(found))
        refuse_live(found.paths)
        size = words.size(total_bytes(found.paths.root))
        if dry_run:
            return f"would remove {size}"
        _remove(found.paths)
        return f"removed {size}"

    each(out, "rm", ids, act, dry_run)


def _remove(paths: ExperimentPaths) -> None:
    """The name goes first: what is left if this is cut off is no experiment any more."""
    doomed = paths.root.with_name(f".{paths.id}.removed")
    paths.root.rename(doomed)
    files.sync_folder(doomed.parent)
    shutil.rmtree(doomed)
