"""``data.paths``: the files that an experiment trains on, digested when it is submitted.

Each path has a manifest (``policy.provenance.source_manifests``) in the experiment, and an entry
in its provenance. Other shapes than a path or a list of paths are the code's own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcdet.errors import ConfigError
from hpcdet.policy.provenance import source_manifests
from hpcdet.policy.provenance.source_manifests import SourceManifest, Watch
from hpcdet.store.folder.derived_store import KnownDigests
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files

KEY = "data.paths"
SOURCE = "data"
"""The id in all manifests: a digest says what the files are, wherever they lie."""


@dataclass(frozen=True)
class DataPath:
    """One of ``data.paths``: what stands in the config, and where that is."""

    given: str
    path: Path

    @property
    def folder(self) -> Path:
        """The folder in which its files are named."""
        return self.path if self.path.is_dir() else self.path.parent

    def names(self) -> list[str]:
        """Its files, by their names below ``folder``. Raises as ``source_manifests.names``."""
        return source_manifests.names(self.path) if self.path.is_dir() else [self.path.name]


@dataclass(frozen=True)
class DataFiles:
    """One of ``data.paths`` with its manifest."""

    place: DataPath
    manifest: SourceManifest


def located(data: Mapping[str, Any], model_dir: Path) -> list[DataPath]:
    """Return what ``data.paths`` names; nothing where it has another shape.

    Variables and ``~`` are those of this process; what is relative is below the model folder.

    Raises:
        ConfigError: a path is not there.
    """
    value = data.get("paths")
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(one, str) and one for one in texts):
        return []
    found = []
    for text in dict.fromkeys(texts):
        expanded = Path(os.path.expandvars(text)).expanduser()
        path = (model_dir / expanded).absolute()
        if not path.exists():
            raise ConfigError(
                f"{text} is not there",
                where=KEY,
                hint=f"it would be {path}; where it is no path, give the key another name",
            )
        found.append(DataPath(text, path))
    return found


def digested(place: DataPath, names: Sequence[str], watch: Watch, known: KnownDigests) -> DataFiles:
    """Read the files of one path, but for those that are known. Raises as ``manifests.make``."""
    made = source_manifests.make(place.folder, SOURCE, watch=watch, only=names, known=known)
    return DataFiles(place, replace(made, folder=str(place.folder)))


def write(data: Sequence[DataFiles], paths: ExperimentPaths) -> list[dict[str, Any]]:
    """Write the manifests to an experiment; return the entries of its provenance."""
    entries = []
    for number, one in enumerate(data, start=1):
        target = paths.data_manifest(number)
        files.write_once(target, one.manifest.to_bytes())
        entries.append({
            "given": one.place.given,
            "path": str(one.place.path),
            "manifest": str(target.relative_to(paths.root)),
            "digest": one.manifest.root,
            "files": len(one.manifest.files),
            "bytes": sum(file.bytes for file in one.manifest.files),
        })  # fmt: skip
    return entries
