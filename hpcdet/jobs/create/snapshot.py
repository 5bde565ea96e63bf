"""Snapshot of the user's model folder, the code that an experiment runs."""

from __future__ import annotations

import hashlib
import itertools
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

import pathspec

from hpcdet.config.load.secret_references import holds, redacted
from hpcdet.errors import ConfigError
from hpcdet.jobs.create import likely_secrets
from hpcdet.store.folder import trust
from hpcdet.store.fs import files

IGNORE_FILES = (".detignore", ".hpcdetignore")
IGNORED = (
    ".git/", ".hg/", ".svn/", ".hpcdet/", "__pycache__/", "*.py[co]", ".venv/", "venv/",
    ".mypy_cache/", ".ruff_cache/", ".pytest_cache/", ".ipynb_checkpoints/", "node_modules/",
    ".DS_Store", "*.swp", "hpcdet-experiments/",
)  # fmt: skip
"""Left out everywhere, as by a line in ``.hpcdetignore``; ``!`` there takes one back."""
MAX_BYTES = 96 * 1024**2
MAX_FILES = 10_000


@dataclass(frozen=True)
class SnapshotEntry:
    """One file or link of a model folder; ``path`` is relative, with slashes."""

    path: str
    source: Path
    bytes: int
    link: str = ""


def scan(
    folder: Path, skip: Path | None = None, include: Sequence[Path] = ()
) -> list[SnapshotEntry]:
    """Return the entries of a snapshot of the folder, ordered by path.

    Args:
        skip: a folder inside it that is left out (that of the experiments).
        include: more files and folders. One that lies inside the folder comes to its own place,
            whatever is ignored there; any other to the top, under its own name. What a folder
            of these ignores itself is left out.

    Raises:
        ConfigError: a file that others may write or that cannot be read, a link that leaves the
            folder, a likely secret, more than ``MAX_BYTES`` or ``MAX_FILES``, or two files for
            one place.
    """
    folder = folder.resolve()
    trust.refuse_writable_by_others(folder, "code")
    hint = f"leave data and results out by a line in {folder / '.hpcdetignore'}"
    # a home folder given by mistake is not walked to its end
    more = itertools.chain.from_iterable(_included(path, folder, skip) for path in include)
    some = itertools.chain(_walk(folder, _ignored(folder), skip), more)
    entries = _one_each(itertools.islice(some, MAX_FILES + 1))
    total = sum(entry.bytes for entry in entries)
    if len(entries) > MAX_FILES:
        raise ConfigError(f"the code has more than {MAX_FILES} files", where=str(folder), hint=hint)
    if total > MAX_BYTES:
        largest = max(entries, key=lambda entry: entry.bytes)
        raise ConfigError(
            f"the code is larger than {MAX_BYTES // 1024**2} MiB "
            f"({total // 1024**2} MiB; the largest file is {largest.path})",
            where=str(folder),
            hint=hint,
        )
    for entry in entries:
        if entry.link == "":
            likely_secrets.refuse(entry.source, entry.path)
    return entries


def _included(path: Path, folder: Path, skip: Path | None) -> Iterator[SnapshotEntry]:
    """Return the entries that ``include`` of a path adds."""
    source = path.expanduser().resolve()
    name = path.name if path.name not in ("", "..") else source.name
    if not source.exists():
        raise ConfigError("the path to include does not exist", where=str(path))
    if source == folder or folder.is_relative_to(source):
        what = "it holds the model folder itself"
        raise ConfigError(what, where=str(path), hint="give that folder as MODEL_DIR")
    at = _relative(source, folder) if source.is_relative_to(folder) else name
    trust.refuse_writable_by_others(source, "code")
    if source.is_dir():
        for entry in _walk(source, _ignored(source), skip):
            yield replace(entry, path=f"{at}/{entry.path}")
        return
    alone = _entry(source, at, source.parent)
    if alone is not None:
        yield alone


def _one_each(entries: Iterable[SnapshotEntry]) -> list[SnapshotEntry]:
    """In order of path; the same file twice counts once. Raises ConfigError for another one."""
    found: dict[str, SnapshotEntry] = {}
    for entry in entries:
        there = found.setdefault(entry.path, entry)
        if there.source != entry.source:
            what = f"{entry.path} is in the code already, from {there.source}"
            raise ConfigError(what, where=str(entry.source), hint="rename one of them")
    places = sorted(found)
    for path in places:
        for above in PurePosixPath(path).parents:
            if str(above) in found:
                what = f"{above} is a file of the code and cannot be a folder, too"
                raise ConfigError(what, where=str(found[path].source), hint="rename one of them")
    return [found[path] for path in places]


def _ignored(folder: Path) -> pathspec.GitIgnoreSpec:
    lines = list(IGNORED)
    for name in IGNORE_FILES:
        path = folder / name
        if not path.is_file():
            continue
        try:
            own = path.read_text(encoding="utf-8").splitlines()
            pathspec.GitIgnoreSpec.from_lines(own)
        except (OSError, ValueError) as error:  # no UTF-8, or a pattern that is none
            raise ConfigError(f"invalid pattern: {error}", where=str(path)) from error
        lines += own
    return pathspec.GitIgnoreSpec.from_lines(lines)


def _walk(
    folder: Path, ignored: pathspec.GitIgnoreSpec, skip: Path | None
) -> Iterator[SnapshotEntry]:
    def fail(error: OSError) -> None:
        raise ConfigError(f"cannot read the code: {error.strerror}", where=str(error.filename))

    for place, names, plain in os.walk(folder, onerror=fail):
        here = Path(place)
        links = [name for name in names if (here / name).is_symlink()]
        names[:] = sorted(
            name
            for name in names
            if name not in links
            and not ignored.match_file(f"{_relative(here / name, folder)}/")
            and here / name != skip
        )
        for name in (*plain, *links):
            path = here / name
            relative = _relative(path, folder)
            if ignored.match_file(relative):
                continue
            if not relative.isprintable():
                hint = "rename it: records and logs could not show it"
                what = f"a file of the code has an odd name, {name!a}"
                raise ConfigError(what, where=str(here), hint=hint)
            entry = _entry(path, relative, folder)
            if entry is not None:
                yield entry


def _relative(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()


def _entry(path: Path, relative: str, folder: Path) -> SnapshotEntry | None:
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        target = path.resolve()
        if not target.is_relative_to(folder):
            raise ConfigError(
                f"a link leaves the model folder, to {target}",
                where=str(path),
                hint="copy what it points to, or leave it out by a line in .hpcdetignore",
            )
        return SnapshotEntry(relative, path, 0, os.path.relpath(target, path.parent))
    if not stat.S_ISREG(status.st_mode):
        return None  # sockets and pipes are no code
    trust.refuse_writable_by_others(path, "code")
    return SnapshotEntry(relative, path, status.st_size)


def copy(
    entries: Iterable[SnapshotEntry], into: Path, literal: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, str]:
    """Copy the entries below a folder, for the owner alone; links stay links.

    Literal ``data.secrets`` of configs are left out: references take their place.

    Args:
        literal: secrets by name, of which no copy may hold any.

    Returns:
        For each path the SHA-256 of its contents (of the target's name, for a link).

    Raises:
        ConfigError: a file cannot be read, or holds a secret.
    """
    files.make_folder(into)
    digests: dict[str, str] = {}
    for entry in entries:
        target = into / entry.path
        files.make_folder(target.parent)
        if entry.link:
            target.symlink_to(entry.link)
        else:
            executable = entry.source.stat().st_mode & stat.S_IXUSR
            contents = redacted(_read(entry))
            likely_secrets.refuse_literal(contents, literal, str(entry.source))
            _write(target, contents, 0o700 if executable else 0o600)
        digests[entry.path] = digest(replace(entry, source=target))
    return digests


def _write(path: Path, data: bytes, mode: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        files.write_all(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)


def _read(entry: SnapshotEntry) -> bytes:
    """The contents of a file of the model folder."""
    try:
        return entry.source.read_bytes()
    except OSError as error:
        what = f"cannot read the code: {error.strerror}"
        raise ConfigError(what, where=str(entry.source)) from error


def digest(entry: SnapshotEntry) -> str:
    """SHA-256 of what a copy of the file holds, or of where a link points, as hex."""
    return _sha256(entry.link.encode() if entry.link else redacted(_read(entry)))


def is_same(entry: SnapshotEntry, digest_: str) -> bool:
    """True if a digest is that of a file's copy or, as in former versions, of all of it."""
    return digest(entry) == digest_ or (not entry.link and _sha256(_read(entry)) == digest_)


def _sha256(contents: bytes) -> str:
    return hashlib.sha256(contents).hexdigest()


def with_secrets(entries: Iterable[SnapshotEntry]) -> list[str]:
    """Paths of the configs that have ``data.secrets``, literal ones or references."""
    return [entry.path for entry in entries if not entry.link and holds(_read(entry))]
