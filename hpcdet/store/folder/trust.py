"""Checks that no other user may write files that run as this user, as ``sshd`` does for keys.

Reading another user's files is no risk, and is not checked. A process that starts something that
an experiment names (its searcher's program, its hook, its ranks) calls ``refuse_to_run`` first.
"""

from __future__ import annotations

import functools
import grp
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from hpcdet.errors import ConfigError
from hpcdet.store.folder.names import CONFIG
from hpcdet.store.fs import files

_OWNER = os.stat(__file__).st_uid


def is_trusted(uid: int) -> bool:
    """True if files of this owner may run: the user, root, or the owner of hpcdet itself."""
    return uid in {0, os.getuid(), _OWNER}


def is_own(folder: Path) -> bool:
    """True for a folder of this user: in another's, reading leaves nothing behind."""
    return folder.stat().st_uid == os.geteuid()


def refuse_anothers(folder: Path) -> None:
    """Refuse to leave something in another user's experiment, who could not even read it.

    Raises:
        ConfigError: the folder belongs to another user.
    """
    status = folder.stat()
    if status.st_uid != os.geteuid():
        raise ConfigError(
            f"the experiment belongs to {user(status.st_uid)}, who alone may change it",
            where=str(folder),
            hint=f"use a copy of your own: cp -r {folder} .",
        )


def refuse_writable_by_others(path: Path, what: str) -> None:
    """Refuse a file or folder that an untrusted user may change.

    Trusted are its owner if that is the user, root, or who owns hpcdet itself (and so runs as
    the user anyway). Folders above it may belong to a group, as project folders do, but not be
    writable by everybody, unless they have the sticky bit (``/tmp``).

    Raises:
        ConfigError: with the mode and what to do.
    """
    status = path.stat()  # of what it leads to, by a descriptor as well
    _refuse_untrusted(path.resolve(), what, status)


def refuse_open_folder(named: Path, fd: int, what: str) -> None:
    """Refuse a folder that is open, as ``refuse_writable_by_others`` does.

    Args:
        named: its path without links.
    """
    _refuse_untrusted(named, what, os.fstat(fd))


def open_trusted(path: Path, what: str, *, any_owner: bool = False) -> BinaryIO:
    """Open a file that no untrusted user may change: the file that is checked is the one read.

    Its name may lead to another file at any time, if another user may rename it.

    Args:
        any_owner: it may belong to another user, as what a digest is known of.

    Raises:
        ConfigError: as ``refuse_writable_by_others``.
        IntegrityError: it is no file.
        OSError: as ``open``.
    """
    named = Path(os.path.realpath(path))  # which a link to itself does not end
    file = os.fdopen(files.open_to_read(named, follow=False), "rb")
    try:
        _refuse_untrusted(named, what, os.fstat(file.fileno()), any_owner)
    except BaseException:
        file.close()
        raise
    return file


def _refuse_untrusted(
    path: Path, what: str, status: os.stat_result, any_owner: bool = False
) -> None:
    if not any_owner and not is_trusted(status.st_uid):
        raise ConfigError(
            f"the {what} belongs to {user(status.st_uid)}",
            where=str(path),
            hint="hpcdet runs nothing of another user's; look at it, and use a copy of your own: "
            f"cp -r {path} .",
        )
    _refuse(path, _writers(status), what, status)
    for folder in path.parents:
        status = folder.stat()
        if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
            _refuse(folder, "everybody", f"folder above the {what}", status)


def exchangeable(root: Path) -> Iterator[str]:
    """Yield warnings of folders on the path in which other users may rename entries.

    They could replace an experiment by another one. Project folders are often like that, so it is
    a warning and not an error.
    """
    for folder in (root, *root.parents):
        if not folder.exists():
            continue
        status = folder.stat()
        if writers := removers(status):
            mode = f"{stat.S_IMODE(status.st_mode):04o}"
            yield (
                f"{writers} may rename what lies in {folder} (mode {mode}) and put something else "
                f"in the place of an experiment: chmod +t {folder}"
            )


def removers(status: os.stat_result) -> str:
    """Name the users who may remove files from another user's folder; "" if there are none."""
    return "" if status.st_mode & stat.S_ISVTX else _writers(status)


def refuse_to_run(code: Path) -> None:
    """Refuse to run an experiment or its code if an untrusted user may change them.

    Args:
        code: ``code/`` of an experiment, or the folder of a model.

    Raises:
        ConfigError: as ``refuse_writable_by_others``, of the code or of the experiment.
    """
    config = code.parent / CONFIG
    if config.exists():
        for mine in (code.parent, config):
            refuse_writable_by_others(mine, "experiment")
    if code.exists():
        refuse_writable_by_others(code, "code")


def _refuse(place: Path, writers: str, what: str, status: os.stat_result) -> None:
    if writers:
        raise ConfigError(
            f"the {what} may be changed by {writers} (mode {stat.S_IMODE(status.st_mode):04o})",
            where=str(place),
            hint=f"chmod go-w {place}",
        )


def _writers(status: os.stat_result) -> str:
    if status.st_mode & stat.S_IWOTH:
        return "everybody"
    if status.st_mode & stat.S_IWGRP and not _private(status.st_gid, status.st_uid):
        return f"group {_group(status.st_gid)}"
    return ""


def _private(gid: int, uid: int) -> bool:
    """True if the owner is the group's only member, as where every user has a private group."""
    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(uid)
    except KeyError:
        return False
    return (
        user.pw_gid == gid
        and group.gr_name == user.pw_name
        and not set(group.gr_mem) - {user.pw_name}
    )


@functools.cache
def user(uid: int) -> str:
    """Return the name of a user, for messages."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
