"""An experiment's folder on scratch: made, made again after a purge, removed only if it is ours.

It holds files that may be purged at any time. A mark in it names its experiment, and is checked
before anything there is written or removed: a link could lead anywhere, an experiment may have
been copied, and a purge removes the oldest files, so that only the mark may be missing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
from pathlib import Path

from hpcdet.errors import ConfigError, IntegrityError, Unavailable
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.names import SCRATCH_MARK
from hpcdet.store.folder.records import ScratchMark
from hpcdet.store.fs import files

_OURS = {SCRATCH_MARK, "trials"}


def target(paths: ExperimentPaths) -> Path | None:
    """Return the target of the link; None if there is none: all files are in one place."""
    try:
        return paths.scratch.readlink()
    except OSError:
        return None


def link(paths: ExperimentPaths, folder: Path) -> None:
    """Make ``folder`` the experiment's part on scratch, in place of the former one."""
    temporary = paths.root / f".scratch.{secrets.token_hex(4)}.tmp"
    temporary.symlink_to(folder.absolute(), target_is_directory=True)
    os.replace(temporary, paths.scratch)
    files.sync_folder(paths.root)


def prepare(paths: ExperimentPaths) -> None:
    """Ensure, before anything is written there, that the folder exists and is the experiment's.

    After a purge it is made again. Does nothing if there is no part on scratch.

    Raises:
        ConfigError: the folder is another experiment's, or others may write into it.
        Unavailable: scratch is not there, or cannot be written.
    """
    folder = target(paths)
    if folder is None:
        return
    try:
        if not folder.exists():
            if not folder.parent.parent.is_dir():
                raise FileNotFoundError(None, "scratch is not there", str(folder.parent.parent))
            files.make_folder(folder)
        if why := _not_ours(paths, folder):
            raise ConfigError(
                f"the experiment's folder on scratch {why}",
                where=str(folder),
                hint=f"give it one of its own: ln -sfn NEW_FOLDER {paths.scratch}",
            )
        _mark(paths, folder)
    except OSError as error:
        raise Unavailable(
            f"the folder on scratch cannot be used: {error.strerror}",
            where=str(error.filename or folder),
        ) from error


def is_gone(paths: ExperimentPaths) -> bool:
    """True if the experiment has a part on scratch that does not exist (any more)."""
    return paths.scratch.is_symlink() and not paths.scratch.is_dir()


def owner(folder: Path) -> ExperimentPaths | None:
    """Return the experiment whose folder on scratch this is; None if there is none."""
    mark = _read(folder)
    paths = ExperimentPaths(Path(mark.experiment)) if mark else None
    return paths if paths and paths.scratch.resolve() == folder.resolve() else None


def refuse_foreign(paths: ExperimentPaths) -> Path | None:
    """Return the folder on scratch once checked to be this experiment's: it may be removed.

    Returns:
        None if there is none, or it is gone.

    Raises:
        ConfigError: it is not: nothing there may be touched.
    """
    folder = target(paths)
    if folder is None or not os.path.lexists(folder):
        return None
    why = _not_ours(paths, folder)
    if not why and _read(folder) is None and set(os.listdir(folder)) - _OURS:
        why = "holds files that are not hpcdet's"
    if why:
        raise ConfigError(
            f"the experiment's folder on scratch {why}",
            where=str(folder),
            hint=f"look at it; to leave it where it is: rm {paths.scratch}",
        )
    return folder


def follow(paths: ExperimentPaths) -> None:
    """Rename the folder on scratch after its experiment has been moved.

    A folder that is not this experiment's, or is gone, stays as it is.
    """
    try:
        folder = refuse_foreign(paths)
    except ConfigError:
        return
    if folder is None:
        return
    named = folder.with_name(paths.id)
    if named != folder and not os.path.lexists(named):
        folder.rename(named)
        link(paths, named)
        files.sync_folder(named.parent)
        folder = named
    _mark(paths, folder)


def _mark(paths: ExperimentPaths, folder: Path) -> None:
    """Write the mark of the experiment, if it is not there already."""
    found = _read(folder)
    root = str(paths.root.resolve())
    own = identity(paths)
    if found is None or (found.experiment, found.identity) != (root, own):
        files.replace(folder / SCRATCH_MARK, ScratchMark(root, own, files.now()).encode())


def _read(folder: Path) -> ScratchMark | None:
    with contextlib.suppress(IntegrityError, OSError):  # what lacks what a mark must have is none
        return ScratchMark.read(folder / SCRATCH_MARK)
    return None


def identity(paths: ExperimentPaths) -> str:
    """Return the identity of an experiment, independent of its folder's name."""
    return hashlib.sha256(files.read(paths.provenance)).hexdigest()


def _not_ours(paths: ExperimentPaths, folder: Path) -> str:
    """Return why a folder cannot be this experiment's; "" if it can."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        return "is no folder"
    if status.st_uid != os.getuid():
        return "belongs to another user"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"may be changed by others (mode {stat.S_IMODE(status.st_mode):04o})"
    mark = _read(folder)
    if mark is None:
        return ""
    if mark.identity != identity(paths):
        return f"is that of {mark.experiment}"
    other = ExperimentPaths(Path(mark.experiment))
    if other.root != paths.root.resolve() and target(other) == folder:
        return f"is that of {mark.experiment}, of which this is a copy"
    return ""
