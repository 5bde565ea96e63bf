"""The capsule of an experiment as one file: all that a repetition needs but the data itself.

Equal files make equal bytes.
"""

from __future__ import annotations

import gzip
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from blake3 import blake3

from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files

NAME = "capsule.tar.gz"


def digest(paths: ExperimentPaths) -> str:
    """Return a digest of the names, sizes and times of the capsule's files."""
    found = []
    for path in _files(paths):
        at = path.lstat()
        found.append([str(path.relative_to(paths.root)), at.st_size, at.st_mtime_ns])
    return blake3(files.canonical(found)).hexdigest()


def write(paths: ExperimentPaths, file: IO[bytes]) -> None:
    """Write the archive; unpacked, it is a folder of the experiment's id."""
    with (
        gzip.GzipFile("", "wb", 6, file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for path in _files(paths):
            tar.add(path, f"{paths.id}/{path.relative_to(paths.root)}", False, filter=_plain)


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    info.mode = 0o755 if info.mode & 0o100 else 0o644
    return info


def _files(paths: ExperimentPaths) -> Iterator[Path]:
    """Yield the files of the capsule, in order; secrets are none of it."""
    alone = (
        paths.config,
        paths.site,
        paths.provenance,
        paths.history,
        paths.policy,
        paths.compiled_policy,
    )
    yield from (path for path in alone if path.is_file())
    folders = (
        paths.code,
        paths.fingerprints,
        paths.data,
        paths.policy_changes,
        paths.certificates,
    )
    for folder in folders:
        for above, below, names in os.walk(folder):
            below.sort()
            here = (Path(above, name) for name in sorted(names))
            yield from (one for one in here if one.is_symlink() or one.is_file())
