"""The recorded files of ``data.paths``, and those alone, for a run that is repeated."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hpcdet.errors import IntegrityError
from hpcdet.jobs.create import data_files
from hpcdet.jobs.create.data_files import DataFiles, DataPath
from hpcdet.policy.provenance import source_manifests
from hpcdet.policy.provenance.source_manifests import SourceManifest, Watch
from hpcdet.read.capsule.recorded import RecordedPath
from hpcdet.store.folder.derived_store import KnownDigests
from hpcdet.store.fs import files

FOLDER = Path("restored", "data")
"""Below the folder of all experiments."""
_LISTED = 5


def restore(
    then: Sequence[RecordedPath],
    now: Sequence[Path],
    root: Path,
    watch: Watch = lambda _: None,
) -> list[DataFiles]:
    """Return the recorded files, every one verified, where a run finds no others.

    Where files were added beside them, the run gets a folder of links to the recorded ones.

    Args:
        now: where ``data.paths`` leads now, for data that has been moved.
        root: the folder of all experiments.

    Raises:
        IntegrityError: files are missing or changed; all are named.
    """
    found, wrong = [], []
    with KnownDigests() as known:
        for number, one in enumerate(then):
            places = [one.path, *now[number : number + 1]]
            path = next((place for place in places if place.exists()), one.path)
            folder = path if path.is_dir() else path.parent
            lacking = _wrong(folder, one.manifest, known, watch)
            wrong += [f"{folder / name} {how}" for name, how in lacking]
            if not lacking:
                found.append(DataFiles(_alone(one, path, folder, root), one.manifest))
    if wrong:
        more = f"; and {len(wrong) - _LISTED} more" if len(wrong) > _LISTED else ""
        raise IntegrityError(
            f"recorded data is not what it was: {'; '.join(wrong[:_LISTED])}{more}",
            where=data_files.KEY,
            hint="put the files back from a backup: nothing else gives the same bits",
        )
    return found


def digested(place: DataPath, root: Path, watch: Watch, known: KnownDigests) -> DataFiles:
    """Read the files of one path as they are now; behind links where ``restore`` made them.

    Raises as ``data_files.digested``.
    """
    names = place.names()
    if not place.path.is_relative_to(root.absolute() / FOLDER):
        return data_files.digested(place, names, watch, known)
    listed = []
    for name in names:
        real = (place.path / name).resolve()
        made = source_manifests.make(
            real.parent, data_files.SOURCE, watch=watch, only=[real.name], known=known
        )
        listed.append(replace(made.files[0], name=name))
    return DataFiles(place, SourceManifest(data_files.SOURCE, tuple(listed)))


def _wrong(
    folder: Path, manifest: SourceManifest, known: KnownDigests, watch: Watch
) -> list[tuple[str, str]]:
    """Return the files that are not what the manifest lists, each with how."""
    wrong = []
    for one in manifest.files:
        try:
            made = source_manifests.make(
                folder, manifest.source, only=[one.name], known=known, watch=watch
            )
        except IntegrityError as error:
            wrong.append((one.name, error.what))
        except (FileNotFoundError, NotADirectoryError):
            wrong.append((one.name, "is missing"))
        else:
            if made.files[0] != one:
                wrong.append((one.name, "has changed"))
    return wrong


def _alone(one: RecordedPath, path: Path, folder: Path, root: Path) -> DataPath:
    """Return a place that holds the recorded files and no other."""
    listed = [each.name for each in one.manifest.files]
    if not path.is_dir() or source_manifests.names(path) == listed:
        return DataPath(str(path), path)
    place = (
        root.absolute() / FOLDER / f"{one.manifest.root.removeprefix('sha256:')[:16]}-{path.name}"
    )
    for name in listed:
        link = place / name
        files.make_folder(link.parent)
        target = (folder / name).absolute()
        if link.is_symlink() and link.readlink() == target:
            continue
        draft = link.with_name(f".{link.name}.{os.getpid()}.draft")
        draft.unlink(missing_ok=True)
        draft.symlink_to(target)
        draft.rename(link)
    return DataPath(str(place), place)
