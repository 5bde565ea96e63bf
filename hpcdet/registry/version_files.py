"""The files of a version: linked or copied, each with its digest, and checked by it.

The checkpoint's data are hard links where the registry is its user's alone and on the same file
system, else copies; all else is copied. ``files.json`` has size and BLAKE3 of every file.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shutil
import stat
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

from blake3 import blake3

from hpcdet.errors import IntegrityError, UsageError
from hpcdet.registry.registry_place import Sharing, reachable
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.folder.names import REGISTERED
from hpcdet.store.folder.records import Trial
from hpcdet.store.fs import files, packed
from hpcdet.store.trials import manifests, parents
from hpcdet.store.trials.standing import MANIFEST

LIST = "files.json"
_PIECE = 4 << 20
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS)
_LINK = b"link:"
"""Before the target of a symbolic link, of which the digest is taken."""
_HINT = "hpcdet registry verify says which versions are whole; add this one again from its source"

Digests = dict[str, list[int | str]]
"""Size and BLAKE3 of each file, by its path in the version's folder."""


class VersionFolder:
    """The folder of a version that is being made; ``digests`` of the files it has so far."""

    def __init__(self, root: Path, sharing: Sharing) -> None:
        self.root, self.digests = root, Digests()
        self._sharing = sharing

    def checkpoint(self, source: Path, target: Path) -> None:
        """Link or copy a checkpoint: what its manifest names, and nothing else.

        Raises:
            IntegrityError: it is not a whole checkpoint.
            OSError: a file is gone, or the disk is full or fails.
        """
        for shard in manifests.read(source)["shards"]:
            self._link_or_copy(source / shard["file"], target / shard["file"])
        self._copy(source / MANIFEST, target / MANIFEST)

    def capsule(self, source: ExperimentPaths) -> None:
        """Copy what is needed to train it again: config, provenance, policy and code."""
        made = ExperimentPaths(self.root)
        single = (source.config, source.provenance, source.policy, source.compiled_policy)
        for path in single:
            if path.exists():
                self._copy(path, self.root / path.name)
        for folder in (source.policy_changes, source.certificates):
            for path in sorted(folder.glob("[0-9]*.json")):
                self._copy(path, self.root / folder.name / path.name)
        if source.code.is_dir() and not source.code.is_symlink():
            self._tree(source.code, made.code)

    def evidence(self, source: ExperimentPaths, trial: TrialPaths) -> None:
        """Copy a trial's record, its ledgers and those of its parent, packed or not.

        Raises:
            IntegrityError: one is no plain file.
        """
        made = ExperimentPaths(self.root).trial(trial.number)
        record = Trial.read(trial.record)
        if record is None:
            raise IntegrityError("the trial has no record", where=str(trial.record))
        self._copy(trial.record, made.record)
        theirs = parents.of_parent(source, trial, record.parent)
        for found, of in ((parents.ledgers(trial), made), (theirs, parents.kept_ledgers(made))):
            for attempt in found:
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    self._copy(attempt.ledger, of.attempt(attempt.number).ledger)

    def finish(self) -> str:
        """Write the list of files; returns its BLAKE3. Everything is durable when this returns."""
        data = files.canonical({"schema": 1, "files": self.digests}) + b"\n"
        files.write_once(self.root / LIST, data, self._sharing.files)
        for folder, _, _ in os.walk(self.root):
            files.sync_folder(Path(folder))
        return blake3(data).hexdigest()

    def _tree(self, source: Path, target: Path) -> None:
        with os.scandir(source) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                there = target / entry.name
                if entry.is_symlink():
                    self._folder(target)
                    to = str(Path(entry.path).readlink())
                    there.symlink_to(to)
                    self._note(there, len(to), blake3(_LINK + os.fsencode(to)).hexdigest())
                elif entry.is_dir():
                    self._tree(Path(entry.path), there)
                else:
                    self._copy(Path(entry.path), there)

    def _link_or_copy(self, source: Path, target: Path) -> None:
        status = source.lstat()
        mine = status.st_uid == os.getuid() and stat.S_ISREG(status.st_mode)
        if self._sharing.private and mine:
            self._folder(target.parent)
            try:
                os.link(source, target, follow_symlinks=False)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
            else:
                self._note(target, *measured(target))
                return
        self._copy(source, target)

    def _copy(self, source: Path, target: Path) -> None:
        with packed.open_file(source) as read:
            self._folder(target.parent)
            self._note(target, *_written(read, target, self._sharing.files))

    def _folder(self, path: Path) -> None:
        if path != self.root and not path.is_dir():
            self._folder(path.parent)
            self._sharing.make(path, self._sharing.folders)

    def _note(self, path: Path, size: int, digest: str) -> None:
        self.digests[path.relative_to(self.root).as_posix()] = [size, digest]


def _written(read: IO[bytes], target: Path, mode: int) -> tuple[int, str]:
    """Copy an open file to a new one; returns size and BLAKE3 of what was written."""
    digest, size = blake3(), 0
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, files.FILE_MODE)
    try:
        for piece in iter(functools.partial(read.read, _PIECE), b""):
            digest.update(piece)
            size += len(piece)
            files.write_all(fd, piece)
        if mode != files.FILE_MODE:
            os.fchmod(fd, mode)
        os.fsync(fd)
    finally:
        os.close(fd)
    return size, digest.hexdigest()


def measured(path: Path) -> tuple[int, str]:
    """Return size and BLAKE3 of a file, or of the target of a symbolic link.

    Raises:
        IntegrityError: it is something else.
        OSError: as ``open``.
    """
    if path.is_symlink():
        to = str(path.readlink())
        return len(to), blake3(_LINK + os.fsencode(to)).hexdigest()
    digest, size = blake3(), 0
    with os.fdopen(files.open_to_read(path, follow=False), "rb") as file:
        for piece in iter(functools.partial(file.read, _PIECE), b""):
            digest.update(piece)
            size += len(piece)
    return size, digest.hexdigest()


def listed(root: Path, digest: str) -> Digests:
    """Return the list of a version's files.

    Raises:
        IntegrityError: it is missing, not the one of this BLAKE3, or names a file elsewhere: who
            may write into the registry may also have written the list.
    """
    path = root / LIST
    try:
        data = files.read(path, files.HUGE)
    except (FileNotFoundError, NotADirectoryError):
        raise IntegrityError("it is missing", where=str(path), hint=_HINT) from None
    if blake3(data).hexdigest() != digest:
        raise IntegrityError("it is not what was written", where=str(path), hint=_HINT)
    value: Any = files.parse_json(data, path)
    found: Any = value.get("files") if isinstance(value, dict) else None
    if not isinstance(found, dict) or not _are_inside(found):
        raise IntegrityError("it is no list of files in the version", where=str(path), hint=_HINT)
    return found


def _are_inside(names: Collection[str]) -> bool:
    """True for paths of files below the folder that they are relative to, none below another."""
    paths = [PurePosixPath(name) for name in names]
    above = {str(parent) for path in paths for parent in path.parents}
    return not any(
        str(path) != name or name in above or path.is_absolute() or ".." in path.parts
        for name, path in zip(names, paths, strict=True)
    )


def problems(root: Path, digest: str) -> Iterator[str]:
    """Yield what is wrong with the files of a version, each as ``PATH: WHAT``; reads every byte."""
    try:
        expected = listed(root, digest)
    except IntegrityError as error:
        yield f"{LIST}: {error.what}"
        return
    there = set(_files(root)) - {LIST, REGISTERED}
    for name in sorted(expected.keys() | there):
        if name not in expected:
            yield f"{name}: it is not of the version"
        elif name not in there:
            yield f"{name}: it is missing"
        else:
            try:
                size, found = measured(root / name)
            except IntegrityError as error:
                yield f"{name}: {error.what}"
                continue
            except OSError as error:
                yield f"{name}: {error.strerror}"
                continue
            if [size, found] != expected[name]:
                same = size == expected[name][0]
                yield f"{name}: " + ("its bytes are others" if same else f"it has {size} bytes")


def _files(root: Path) -> Iterator[str]:
    """Yield the paths of all that is in a folder but folders."""
    for folder, folders, others in os.walk(root):
        links = [one for one in folders if Path(folder, one).is_symlink()]
        for name in (*others, *links):
            yield Path(folder, name).relative_to(root).as_posix()


def get(root: Path, digest: str, part: Path, target: Path) -> int:
    """Copy a part of a version to a new folder; every byte is checked on its way.

    Args:
        part: a folder in ``root``, or ``root`` itself.
        target: has its name only once all of it is there.

    Returns:
        The number of bytes.

    Raises:
        UsageError: ``target`` exists.
        IntegrityError: a file is missing, or not what was written.
        Unavailable: the disk is full or fails, or a file may not be read.
    """
    with reachable(target):
        return _get(root, digest, part, target)


def _get(root: Path, digest: str, part: Path, target: Path) -> int:
    if os.path.lexists(target):
        raise UsageError("it exists", where=str(target), hint="name a folder that does not")
    within = part.relative_to(root)
    expected = listed(root, digest)
    chosen = {name: of for name, of in expected.items() if Path(name).is_relative_to(within)}
    partial = target.with_name(f".partial-{target.name}-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    total = 0
    try:
        files.make_folder(partial)
        for name, of in chosen.items():
            total += _got(root / name, partial / Path(name).relative_to(within), of)
        for folder, _, _ in os.walk(partial):
            files.sync_folder(Path(folder))
        partial.rename(target)
        files.sync_folder(target.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return total


def _got(source: Path, target: Path, expected: list[int | str]) -> int:
    files.make_folder(target.parent)
    try:
        if source.is_symlink():
            size, digest = measured(source)
            target.symlink_to(source.readlink())
        else:
            with os.fdopen(files.open_to_read(source, follow=False), "rb") as read:
                size, digest = _written(read, target, files.FILE_MODE)
    except FileNotFoundError:
        raise IntegrityError("it is missing", where=str(source), hint=_HINT) from None
    if [size, digest] != expected:
        raise IntegrityError("it is not what was written", where=str(source), hint=_HINT)
    return size


def remove(root: Path) -> None:
    """Remove a version's folder, its checkpoint first; what resists is left for a later call."""
    with contextlib.suppress(OSError):
        if stat.S_ISLNK(root.lstat().st_mode):
            return
        for _, _, names, folder in os.fwalk(root):  # which follows no links
            if MANIFEST in names:
                with contextlib.suppress(OSError):
                    os.unlink(MANIFEST, dir_fd=folder)
    shutil.rmtree(root, ignore_errors=True)
