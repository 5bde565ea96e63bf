"""Hard links of checkpoints: a second name without writing the data again.

Both login and node tower need it: the holder of the lease gives a trial the checkpoint that it
begins from, before that may be removed. Data are not read here; the process that loads them
checks every byte.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from hpcdet.errors import IntegrityError, UsageError
from hpcdet.store.fs import files, sealed_json
from hpcdet.store.trials import manifests
from hpcdet.store.trials.standing import MANIFEST

DRAFT = ".linking-"
"""What the names of folders that are no checkpoints yet begin with."""
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS)


def manifest(checkpoint: Path) -> dict[str, Any]:
    """Return a checkpoint's manifest, checked against its digest and its files' sizes.

    Raises:
        IntegrityError: it is not a whole checkpoint.
    """
    hint = "hpcdet ckpt verify says which of a trial's are"
    try:
        found = manifests.outline(checkpoint)
        for shard in found["shards"]:
            size = (checkpoint / shard["file"]).stat().st_size
            if size != shard["bytes"]:
                raise IntegrityError(f"{shard['file']} has {size} bytes")
    except (FileNotFoundError, IntegrityError) as error:
        what = error.what if isinstance(error, IntegrityError) else f"{error.filename} is missing"
        what = f"it is not a whole checkpoint: {what}"
        raise IntegrityError(what, where=str(checkpoint / MANIFEST), hint=hint) from error
    return found


def link(
    source: Path,
    target: Path,
    *,
    meta: Mapping[str, Any] | None = None,
    without: Collection[str] = (),
    previous: str = "",
) -> dict[str, Any]:
    """Make ``target`` a checkpoint of the same content, independent of ``source`` from then on.

    Its files are hard links: they take no room, and the data go with the last of their names. On
    another file system, or one without links, they are copies. Only the manifest is its own. It
    has its name once it is whole; of several who do this at once, one gets it.

    Args:
        source: a checkpoint.
        target: ``TrialPaths.checkpoint(step, attempt)`` of the same step.
        meta: what is remembered beside, or instead of, what ``source`` does; ``without``: what of
            that is not.
        previous: root of the checkpoint before ``target``.

    Returns:
        The manifest of ``target``, which is durable; ``meta["linked"]`` names its origin.

    Raises:
        IntegrityError: the source is no whole checkpoint.
        UsageError: there is a checkpoint of that name already.
        OSError: the disk is full or fails; nothing is left behind.
    """
    if (target / MANIFEST).exists():
        raise UsageError("a checkpoint of this name exists", where=str(target))
    origin = manifest(source)
    inherited = {key: value for key, value in origin["meta"].items() if key not in without}
    made = sealed_json.sealed(
        {
            **origin,
            "name": target.name,
            "meta": {
                **inherited,
                **(meta or {}),
                "linked": {"name": origin["name"], "root": origin[sealed_json.ROOT]},
            },
            "prev_root": previous,
        }
    )
    draft = target.with_name(f"{DRAFT}{target.name}-{secrets.token_hex(4)}")
    files.make_folder(draft)
    try:
        for shard in origin["shards"]:
            _same(source / shard["file"], draft / shard["file"])
        files.replace(draft / MANIFEST, sealed_json.text(made))
        files.sync_folder(draft)
        _name(draft, target)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    files.sync_folder(target.parent)
    return made


def _name(draft: Path, target: Path) -> None:
    """Give a draft its name. Raises ``UsageError`` if another one has the name meanwhile."""
    try:
        draft.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if (target / MANIFEST).exists():
            raise UsageError("a checkpoint of this name exists", where=str(target)) from None
        shutil.rmtree(target)  # half of one, of a version that made them in place
        draft.rename(target)


def tree(source: Path, target: Path) -> None:
    """Make ``target`` a folder with the same files, by hard links where the file system has them.

    For files that do not change any more. Drafts (hidden files) are left out.

    Raises:
        FileNotFoundError: a file went away meanwhile.
        OSError: the disk is full or fails.
    """
    files.make_folder(target)
    with os.scandir(source) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            there = target / entry.name
            if entry.is_symlink():
                there.symlink_to(Path(entry.path).readlink())
            elif entry.is_dir():
                tree(Path(entry.path), there)
            elif not entry.name.startswith("."):
                _same(Path(entry.path), there)
    files.sync_folder(target)


def _same(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copyfile(source, target)
        target.chmod(files.FILE_MODE)
        fd = os.open(target, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
