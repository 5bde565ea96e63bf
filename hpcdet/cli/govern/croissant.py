"""Croissant metadata of a data set: its name, its license, and the digests of its files."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from hpcdet.errors import ConfigError, IntegrityError, UsageError
from hpcdet.policy.provenance.source_manifests import SourceManifest

_HEX = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True)
class CroissantFile:
    """A ``FileObject``: names that its file may have below the folder, and its SHA-256, hex."""

    names: tuple[str, ...]
    sha256: str


@dataclass(frozen=True)
class Croissant:
    """A data set as a Croissant file describes it.

    Attributes:
        about: ``name`` and ``license``, where it says them.
        files: those with a digest that do not lie in an archive.
    """

    about: dict[str, str]
    files: tuple[CroissantFile, ...]

    def compare(self, manifest: SourceManifest) -> None:
        """Compare its digests with those of files that were read.

        Raises:
            IntegrityError: a file is missing, or is not the one that it describes.
        """
        found = {one.name: one.sha256.removeprefix("sha256:") for one in manifest.files}
        for file in self.files:
            name = next((name for name in file.names if name in found), None)
            if name is None:
                hint = "download it, or make the manifest of the folder that has it"
                raise IntegrityError("the file is missing", where=file.names[0], hint=hint)
            if found[name] != file.sha256:
                hint = "download it again, or ask its publisher for the present metadata"
                what = "its contents are not those that its Croissant metadata describe"
                raise IntegrityError(what, where=name, hint=hint)


def read(path: Path) -> Croissant:
    """Read a Croissant file by ``mlcroissant``; no data are downloaded.

    Raises:
        UsageError: ``mlcroissant`` is not installed.
        ConfigError: it is no Croissant metadata, or a digest in it is none.
    """
    try:
        import mlcroissant
    except ModuleNotFoundError:
        hint = "pip install 'hpcdet[croissant]'"
        raise UsageError("--croissant needs mlcroissant", hint=hint) from None
    logging.getLogger("absl").setLevel(logging.ERROR)  # what is merely recommended
    try:
        metadata = mlcroissant.Dataset(jsonld=str(path)).metadata
    except Exception as error:  # a foreign library's errors have no base
        what = f"it is no Croissant metadata: {type(error).__name__}: {str(error).strip()}"
        hint = "mlcroissant validate --jsonld FILE lists all that is wrong"
        raise ConfigError(what[:400], where=str(path), hint=hint) from None
    known = {"name": metadata.name, "license": _text(metadata.license)}
    about = {key: str(value) for key, value in known.items() if value}
    objects = [one for one in metadata.distribution if isinstance(one, mlcroissant.FileObject)]
    files = tuple(_file(one, path) for one in objects if one.sha256 and not one.contained_in)
    return Croissant(about, files)


def _file(one: Any, path: Path) -> CroissantFile:
    if not _HEX.fullmatch(one.sha256):
        hint = "a digest is 64 hex digits; see the metadata's publisher"
        raise ConfigError(f"sha256 of {one.name or one.id} is none", where=str(path), hint=hint)
    url = unquote(urlsplit(one.content_url or "").path)
    names = (url.removeprefix("./"), PurePosixPath(url).name, one.name, one.id)
    return CroissantFile(tuple(dict.fromkeys(filter(None, names))), one.sha256.lower())


def _text(value: str | list[str] | Mapping[str, Any] | None) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value or "")
