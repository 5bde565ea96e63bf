"""Images by reference: fetched once into a folder, where each has its digest for its name.

IMAGES/sha256-<64 hex digits><suffix>     write-once
IMAGES/references/<digest of kind and reference>.json     what the reference meant when fetched
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hpcdet.containers import image_files
from hpcdet.containers.runtime import ContainerRuntime, RegistryLogin, registry
from hpcdet.errors import ConfigError, Unavailable
from hpcdet.store.fs import files

_SAID = 20


@dataclass(frozen=True)
class FetchedImage:
    """An image that can be used.

    Attributes:
        image: its path, or its id in the runtime's own store.
        digest: over its contents, or that id; "": nobody but the launcher knows.
        stamp: ``image_files.stamp``; "" where it is no path.
    """

    image: str
    digest: str
    stamp: str = ""


def fetched(
    runtime: ContainerRuntime,
    reference: str,
    images: Path,
    login: RegistryLogin | None = None,
    *,
    again: bool = False,
) -> FetchedImage:
    """Return the image of a reference, which is fetched unless it has been before.

    Args:
        images: the folder of images; made if it is missing.
        again: what was fetched before counts for nothing.

    Raises:
        ConfigError: it cannot be fetched, with what the runtime said.
        Unavailable: the folder cannot be written.
    """
    if runtime.form == "name":
        return FetchedImage(reference, "")
    try:
        return _fetched(runtime, reference, images, login, again=again)
    except OSError as error:
        what = f"cannot keep images: {error.strerror}"
        raise Unavailable(what, where=str(error.filename or images)) from error


def _fetched(
    runtime: ContainerRuntime,
    reference: str,
    images: Path,
    login: RegistryLogin | None,
    *,
    again: bool,
) -> FetchedImage:
    known = f"{runtime.command or runtime.suffix} {reference}".encode()
    record = images / "references" / f"{hashlib.sha256(known).hexdigest()}.json"
    found = files.read_json(record)
    if not again and isinstance(found, dict) and (image := _kept(runtime, images, found)):
        return image
    files.make_folder(record.parent)
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=images) as place:
        folder = Path(place)
        target = folder / f"image{runtime.suffix}"
        private = folder / "login"
        private.mkdir(mode=0o700)
        variables = dict(os.environ)
        if login is not None:
            variables |= runtime.login(login, registry(reference), private)
        for argv in runtime.fetch(reference, target):
            _run(argv, variables, reference)
        if runtime.form == "store":
            made = _run(runtime.identify(reference), variables, reference).strip()
            image = FetchedImage(made, made)
        else:
            image = _settled(target, images, runtime.suffix)
    name = Path(image.image).name
    record_text = {"reference": reference, "image": name, "digest": image.digest, "at": files.now()}
    files.replace(record, files.canonical(record_text) + b"\n")
    return image


def _kept(runtime: ContainerRuntime, images: Path, found: dict[str, object]) -> FetchedImage | None:
    """Return the image that was fetched before; None if it is gone."""
    name, digest = str(found.get("image")), str(found.get("digest"))
    if runtime.form == "store":
        return FetchedImage(name, digest)
    path = images / Path(name).name
    return FetchedImage(str(path), digest, image_files.stamp(path)) if path.exists() else None


def _settled(target: Path, images: Path, suffix: str) -> FetchedImage:
    """Give an image its digest for its name; one that is there already stays."""
    digest = image_files.digest(target)
    path = images / f"{digest.replace(':', '-')}{suffix}"
    if not path.exists():
        target.rename(path)
    elif target.is_dir():
        shutil.rmtree(target)
    return FetchedImage(str(path), digest, image_files.stamp(path))


def _run(argv: tuple[str, ...], variables: dict[str, str], reference: str) -> str:
    hint = "is the registry reached from here? A path of an image that is on disk works as well"
    try:
        done = subprocess.run(
            argv,
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        what = f"cannot fetch it: {argv[0]}: {error.strerror}"
        raise ConfigError(what, where=f"image {reference}", hint=hint) from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()[-_SAID:]
        raise ConfigError(
            f"cannot fetch it: {argv[0]} ended with {done.returncode}",
            where=f"image {reference}",
            hint="\n".join(said) or hint,
        )
    return done.stdout
