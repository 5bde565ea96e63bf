"""``move``, ``archive`` and ``rm``: verbs on whole experiments that have no live processes."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import tarfile
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from hpcdet import units
from hpcdet.cli.frame.bulk import ActionView, each
from hpcdet.cli.frame.ids import called, id_argument, ids_argument
from hpcdet.cli.frame.output import Column, Output, output
from hpcdet.cli.frame.progress import busy
from hpcdet.cli.frame.settings import confirm, settings
from hpcdet.cli.observe import follow
from hpcdet.control import daemon
from hpcdet.errors import IntegrityError, Unavailable, UsageError
from hpcdet.read.experiment import gather, states
from hpcdet.read.lookup import find
from hpcdet.store.folder import home, scratch
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.names import SCRATCH_MARK
from hpcdet.store.fs import files
from hpcdet.store.trials.standing import MANIFEST

COLUMNS = (Column("ID", "id"), Column("TO", "path"), Column("WHAT", "what"))
NOT_ARCHIVED = ("secrets.json", "index.sqlite")
"""Secrets are nobody else's, and the index is derived."""
LEAVE_S = 60.0
"""How long workers are waited for that may have died after all was over."""


@dataclass(frozen=True)
class MoveView:
    """A folder that was moved or taken over."""

    id: str
    """The experiment's id now."""
    path: str
    """Where it is."""
    dry_run: bool
    """True if nothing was done, with ``-n``."""
    what: str
    """What was done."""


@dataclass(frozen=True)
class ArchiveView:
    """An experiment packed into a file."""

    id: str
    """The experiment's id."""
    path: str
    """The file."""
    bytes: int
    """Its size."""
    what: str
    """What was done."""
    dry_run: bool
    """True if nothing was done, with ``-n``."""
    removed: bool
    """True if the folder was removed."""


def whole(text: str) -> ExperimentPaths:
    """Return the experiment named by ``text``, which must not name a part of one.

    Raises:
        NotFound: there is none.
        UsageError: it is a file inside one, a trial, or a folder that hpcdet did not make.
    """
    found = find.reference(text, settings().root)
    path = Path(text).expanduser().absolute()
    below = [found.paths.root, *filter(None, [scratch.target(found.paths)])]
    inside = path != found.paths.root and any(path.is_relative_to(folder) for folder in below)
    if found.trial or (inside and path.exists() and path.resolve() != found.paths.root.resolve()):
        raise UsageError("only whole experiments can be moved, packed or removed", where=text)
    home.refuse_registered(found.paths)
    if not found.paths.provenance.is_file():
        raise UsageError("this folder was not made by hpcdet", where=str(found.paths.root))
    return found.paths


def refuse_live(paths: ExperimentPaths) -> None:
    """Raise UsageError if anything may still write into the folder; nothing writes into a copy."""
    if home.original(paths) is not None:
        return
    gathered = gather.gather(paths)
    if gathered.closed is not None:
        _let_workers_leave(paths)
        return
    state, _ = states.experiment_state(gathered)
    workers = any(worker.end is None for worker in gathered.workers)
    jobs = any(job.submitted and job.submitted.job for job in gathered.jobs)
    if workers or (jobs and state != "PAUSED"):
        raise UsageError(
            f"the experiment is still active ({state})",
            where=paths.id,
            hint=f"hpcdet cancel {called(paths)} --wait",
        )
    holder = daemon.status(paths)
    if holder["held"] and (holder["age_s"] or 0.0) <= states.FRESH_S:
        where, hint = (
            f"{holder['kind']} on {holder['host']}",
            f"hpcdet searcher stop {called(paths)}",
        )
        raise UsageError(f"another process decides for it: {where}", where=paths.id, hint=hint)


def _let_workers_leave(paths: ExperimentPaths) -> None:
    """Wait until the workers of a just ended experiment have written their last records."""
    if not states.leaving(gather.gather(paths)):
        return
    limit = time.monotonic() + LEAVE_S
    with busy(f"waiting until the workers of {paths.id} have left"):
        while states.leaving(gather.gather(paths)) and time.monotonic() < limit:
            follow.pause(0.2)


def total_bytes(folder: Path) -> int:
    """Return the size in bytes of all files below a folder."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def size_of(paths: ExperimentPaths) -> int:
    """Bytes of an experiment, with its folder on scratch.

    Raises:
        ConfigError: the folder that it has on scratch is not its own.
    """
    folder = scratch.refuse_foreign(paths)
    return total_bytes(paths.root) + (total_bytes(folder) if folder else 0)


@click.command("move", short_help="Move an experiment's folder.")
@id_argument()
@click.argument("to", type=click.Path(path_type=Path), required=False)
@click.option("--here", is_flag=True, help="The folder is in its new place already: record that.")
@click.option("-n", "--dry-run", is_flag=True, help="Only print what would be done.")
@output("move", MoveView)
def move_command(out: Output, id: str, to: Path | None, here: bool, dry_run: bool) -> None:
    """Move an experiment that has ended or is paused: into the folder TO, or to that new path.

    What it has on scratch stays there, under the new name.

    With --here, take over a folder that was copied, restored or moved by other means. It goes on
    from its checkpoints with new jobs; those that it had are not touched, as they may be the
    original's.

    \b
    Examples: hpcdet move digits-7f3a /project/ada/kept
              hpcdet move /scratch/ada/restored/digits-7f3a --here
    """
    if here == (to is not None):
        raise UsageError("no destination given; name a folder, or use --here", where="move")
    paths = whole(id)
    if to is None:
        what = _take_over(paths, dry_run)
        out.emit([MoveView(paths.id, str(paths.root), dry_run, what)], COLUMNS)
        return
    refuse_live(paths)
    _refuse_shared_scratch(paths)
    to = to.expanduser().absolute()
    target = to / paths.id if to.is_dir() else to
    if target.exists():
        raise UsageError("the path exists already", where=str(target))
    if not target.parent.is_dir():
        raise UsageError("no such folder", where=str(target.parent))
    what = "would be moved" if dry_run else "moved"
    out.expect()
    if not dry_run:
        with busy(f"moving {paths.id}"):
            _move(paths.root, target)
            scratch.follow(ExperimentPaths(target))
            home.settle(ExperimentPaths(target))
    out.emit([MoveView(target.name, str(target), dry_run, what)], COLUMNS)


def _take_over(paths: ExperimentPaths, dry_run: bool) -> str:
    """Make an experiment's present folder its home; return what was done."""
    if home.is_here(paths):
        return "lives here already"
    _refuse_shared_scratch(paths)
    if dry_run:
        return "would be taken over"
    scratch.follow(paths)
    home.settle(paths)
    if paths.submissions() and not paths.closed.exists():
        settings().note(
            f"its former jobs are left alone; to continue: hpcdet resume {called(paths)}"
        )
    return "taken over"


def _refuse_shared_scratch(paths: ExperimentPaths) -> None:
    """Refuse to rename a folder on scratch that is not this experiment's alone.

    Raises:
        UsageError: it is the original's, of which this one is a copy.
        ConfigError: as ``scratch.refuse_foreign``.
    """
    there = home.original(paths)
    if there is not None and scratch.target(paths) is not None:
        raise UsageError(
            "its checkpoints lie on scratch, in the original's folder",
            where=str(paths.scratch),
            hint=f"hpcdet fork {shlex.quote(str(there))}",
        )
    scratch.refuse_foreign(paths)


def _move(source: Path, target: Path) -> None:
    """Rename a folder; to another file system, copy it completely, then remove the original."""
    try:
        source.rename(target)
        return
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
    if not os.access(source.parent, os.W_OK):  # there would be two of it in the end
        raise Unavailable("the original could not be removed", where=str(source))
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(mode=files.FOLDER_MODE)  # nobody else looks in while modes are not copied yet
    shutil.copytree(source, partial, symlinks=True, dirs_exist_ok=True)
    if total_bytes(partial) != total_bytes(source):
        raise IntegrityError(
            "the copy is incomplete; the original is untouched", where=str(partial)
        )
    os.sync()  # the copy must outlast a crash that the original does not
    partial.rename(target)
    files.sync_folder(target.parent)
    _remove(source)


@click.command("archive", short_help="Pack an ended experiment into one file.")
@id_argument()
@click.option("--out", "target", type=click.Path(path_type=Path), help="The file [ROOT/ID.tar.gz].")
@click.option("--remove", is_flag=True, help="Remove the folder once the file is complete.")
@click.option("-n", "--dry-run", is_flag=True, help="Only print what would be done.")
@output("archive", ArchiveView)
def archive_command(out: Output, id: str, target: Path | None, remove: bool, dry_run: bool) -> None:
    """Pack an experiment into one file; unpacked under a root, it is valid again.

    What it has on scratch is packed with it. Literal secrets are left out.

    \b
    Example: hpcdet archive digits-7f3a --out digits.tar.gz
    """
    paths = whole(id)
    refuse_live(paths)
    file = target or paths.root.with_name(f"{paths.id}.tar.gz")
    if file.exists():
        raise UsageError("the path exists already", where=str(file))
    if not file.absolute().parent.is_dir():
        raise UsageError("no such folder", where=str(file.absolute().parent))
    out.expect()
    if not dry_run:
        if remove:
            confirm(f"remove {paths.root} after packing it?")
        with busy(f"packing {paths.id}"):
            _pack(paths, file)
        if remove:
            _remove_both(paths)
    size = 0 if dry_run else file.stat().st_size
    what = "would be packed" if dry_run else f"packed, {units.size(size)}"
    gone = remove and not dry_run
    out.emit([ArchiveView(paths.id, str(file), size, what, dry_run, gone)], COLUMNS)


def _pack(paths: ExperimentPaths, file: Path) -> None:
    link = [paths.scratch.name] if paths.scratch.is_symlink() else []
    left_out = {f"{paths.id}/{name}" for name in (*NOT_ARCHIVED, *link)}
    folder = scratch.refuse_foreign(paths)
    # a name of its own: two who pack at once must not write into each other's file
    fd, name = tempfile.mkstemp(prefix=f".{file.name}.", suffix=".partial", dir=file.parent)
    partial = Path(name)
    try:
        with os.fdopen(fd, "wb") as written, tarfile.open(fileobj=written, mode="w:gz") as tar:
            tar.add(
                paths.root,
                arcname=paths.id,
                filter=lambda info: None if info.name in left_out else info,
            )
            if folder is not None:
                _pack_below(tar, folder, paths)
        with tarfile.open(partial) as tar:
            names = set(tar.getnames())
        if f"{paths.id}/{paths.config.name}" not in names:
            raise IntegrityError("the archive is incomplete", where=str(partial))
        with partial.open("rb") as packed:
            os.fsync(packed.fileno())
        partial.rename(file)
        files.sync_folder(file.parent)
    finally:
        partial.unlink(missing_ok=True)


def _pack_below(tar: tarfile.TarFile, folder: Path, paths: ExperimentPaths) -> None:
    """Add the folder on scratch in place of its link, without second copies of checkpoints."""
    kept = {trial.kept for trial in paths.trials()}

    def chosen(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        below = Path(info.name).relative_to(Path(paths.id, paths.scratch.name))
        own = paths.root / below
        copied = own.parent in kept and (own / MANIFEST).is_file()
        return None if copied or below.name == SCRATCH_MARK else info

    tar.add(folder, arcname=f"{paths.id}/{paths.scratch.name}", filter=chosen)


@click.command("rm", short_help="Remove ended experiments.")
@ids_argument()
@click.option("-n", "--dry-run", is_flag=True, help="Only print what would be removed.")
@output("rm", ActionView)
def rm_command(out: Output, ids: Sequence[str], dry_run: bool) -> None:
    """Remove experiments that have ended, with their checkpoints, for good.

    \b
    Example: hpcdet rm digits-7f3a -n
    """
    found = list(dict.fromkeys(whole(id) for id in ids))
    if not dry_run:
        total = units.size(sum(size_of(paths) for paths in found))
        names = ", ".join(paths.id for paths in found[:5]) + (", …" if len(found) > 5 else "")
        many = units.counted(len(found), "experiment")
        confirm(f"remove {many} ({total}) for good: {names}?")

    def act(found: find.Reference) -> str:
        refuse_live(found.paths)
        size = units.size(size_of(found.paths))
        if dry_run:
            return f"would remove {size}"
        _remove_both(found.paths)
        return f"removed {size}"

    # by their folders: @last is another one as soon as the first has gone
    each(out, "rm", [str(paths.root) for paths in found], act, dry_run)


def _remove_both(paths: ExperimentPaths) -> None:
    """Remove the folder on scratch, then the experiment, which has the only reference to it."""
    folder = scratch.refuse_foreign(paths)
    if folder is not None:
        _remove(folder)
    _remove(paths.root)


def _remove(folder: Path) -> None:
    """Rename a folder, then remove it, so that an interrupted removal leaves no experiment."""
    doomed = folder.with_name(f".{folder.name}.removed")
    folder.rename(doomed)
    files.sync_folder(doomed.parent)
    shutil.rmtree(doomed)
