"""The folder of the registry, and who may read and write what is made in it.

A registry is its user's alone unless its folder is a group's: ``chgrp GROUP REGISTRY; chmod 2770
REGISTRY``. Then models are the group's, too: all of it may add versions and events; what is in a
version belongs to who added it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hpcdet.errors import ConfigError, Unavailable, refused
from hpcdet.store.fs import files

VARIABLE = "HPCDET_REGISTRY"
FOLDER = "registry"
"""Name of the registry's folder in that of experiments."""


def folder(root: Path, site: Path | None = None) -> Path:
    """Return the registry's folder: ``$HPCDET_REGISTRY``, else the site's, else ``ROOT/registry``.

    Args:
        root: the folder of experiments.
        site: ``paths.registry`` of the site; None if it names none.
    """
    if given := os.environ.get(VARIABLE):
        return Path(given).expanduser().absolute()
    return site or root / FOLDER


@dataclass(frozen=True)
class Sharing:
    """Modes and group of what is made in a registry, taken from its folder.

    Attributes:
        files: mode of files.
        folders: of folders inside of a version, which its owner alone changes.
        common: of folders in which all who share the registry make entries; the sticky bit
            leaves each entry to who made it.
        group: None where the registry is one user's.
    """

    files: int
    folders: int
    common: int
    group: int | None

    @property
    def private(self) -> bool:
        """True if the registry is readable by its user only."""
        return self.files == files.FILE_MODE

    @staticmethod
    def of(registry: Path) -> Sharing:
        """Return how a registry is shared; one that is not there yet is its user's alone.

        Raises:
            ConfigError: everybody may write into it.
        """
        try:
            status = registry.stat()
        except FileNotFoundError:
            files.make_folder(registry)
            status = registry.stat()
        mode = status.st_mode
        if mode & stat.S_IWOTH:
            what = f"everybody may write into the registry (mode {stat.S_IMODE(mode):04o})"
            raise ConfigError(what, where=str(registry), hint=f"chmod o-w {registry}")
        ours, all_ = mode & 0o050 == 0o050, mode & 0o005 == 0o005
        read = (0o040 if ours else 0) | (0o004 if all_ else 0)
        folders = files.FOLDER_MODE | (0o050 if ours else 0) | (0o005 if all_ else 0)
        common = folders | (0o3020 if ours and mode & stat.S_IWGRP else 0)
        return Sharing(files.FILE_MODE | read, folders, common, status.st_gid if ours else None)

    def make(self, path: Path, mode: int) -> None:
        """Make a folder that is not there, with a mode and the registry's group.

        Raises:
            OSError: it is there, or cannot be made.
        """
        path.mkdir(mode=files.FOLDER_MODE)
        if self.group is not None:
            if path.stat().st_gid != self.group:
                os.chown(path, -1, self.group)
            mode |= stat.S_ISGID
        path.chmod(mode)


def make_model(registry: Path, name: str, sharing: Sharing) -> Path:
    """Return a model's folder, made whole or not at all, if it is not there yet.

    Raises:
        OSError: it cannot be made.
    """
    model = registry / name
    if model.is_dir():
        return model
    draft = registry / f".{name}.{secrets.token_hex(4)}"
    sharing.make(draft, sharing.common)
    for one in ("events", "versions"):
        sharing.make(draft / one, sharing.common)
    try:
        draft.rename(model)
    except OSError as error:
        for one in ("events", "versions", "."):
            (draft / one).rmdir()
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    files.sync_folder(registry)
    return model


@contextlib.contextmanager
def reachable(where: Path) -> Iterator[None]:
    """Turn refusals of the file system into an error of ours.

    Raises:
        Unavailable: with the file at fault, else ``where``.
    """
    try:
        yield
    except OSError as error:
        found = refused(error, str(where))
        hint = "df -h says what is full" if found.hint else f"ls -ld {where}"
        raise Unavailable(found.what, where=found.where, hint=hint) from error
