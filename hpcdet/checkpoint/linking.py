"""Taking another trial's checkpoint as one's own, without writing its data again."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpcdet.checkpoint import loading, remove
from hpcdet.checkpoint import manifest as manifests
from hpcdet.checkpoint.manifest import Manifest
from hpcdet.errors import UsageError
from hpcdet.store import files
from hpcdet.store.trials import MANIFEST

_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS)


def link(
    source: Path, target: Path, *, meta: Mapping[str, Any] | None = None, previous: str = ""
) -> Manifest:
    """Make ``target`` a checkpoint of the same content, whatever becomes of ``source``.

    Its files are hard links: they take no room, and the data go with the last of their names. On
    another file system, or one without links, they are copies. Only the manifest is its own.

    Args:
        source: a checkpoint; every byte of it is checked.
        target: ``TrialPaths.checkpoint(step, attempt)`` of the same step.
        meta: what is remembered beside what ``source`` does.
        previous: root of the checkpoint before ``target``.

    Returns:
        The manifest of ``target``, which is durable; ``meta["linked"]`` names its origin.

    Raises:
        IntegrityError: the source is damaged.
        UsageError: there is a checkpoint already, or its name says another step.
        OSError: the disk is full or fails; nothing is left behind.
    """
    if manifests.is_committed(target):
        raise UsageError("a checkpoint of this name exists", where=str(target))
    origin = loading.verify(source)
    if manifests.position(target.name)[0] != manifests.position(origin.name)[0]:
        raise UsageError(f"it is not of the step of {origin.name}", where=str(target))
    linked = {"name": origin.name, "root": origin.root}
    made = replace(
        origin,
        name=target.name,
        meta={**origin.meta, **(meta or {}), "linked": linked},
        prev_root=previous,
    ).sealed()
    remove.folder(target)  # what an earlier try left
    files.make_folder(target)
    try:
        for shard in origin.shards:
            _same(source / shard.file, target / shard.file)
        files.sync_folder(target)
        files.replace(target / MANIFEST, made.encode())
    except BaseException:
        remove.folder(target)
        raise
    files.sync_folder(target.parent)
    return made


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
