"""An object store as files are copied to and from it; fsspec and its packages are imported inside.

An object appears whole or not at all: a process that is killed while it sends one leaves none of
that name, or the one that was there.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from blake3 import blake3

from hpcdet.errors import HpcdetError, IntegrityError, NotFound, Unavailable
from hpcdet.store.fs import files
from hpcdet.store.objects.store_place import EXTRA, PACKAGES, SCHEMES, StorePlace

_PIECE = 4 << 20
_PART = 16 << 20
"""Bytes of one part of an upload, of which a few are in memory at once."""
_MOST_PARTS = 9000
_AT_ONCE = 2
_WAITS = "it may be tried again: what is there already stays"


class ObjectStore:
    """A folder of an object store.

    Args:
        at_work: called with a number of bytes while some are sent or read.

    Raises:
        Unavailable: the packages are not installed, or the client cannot be made.
    """

    def __init__(self, place: StorePlace, at_work: Callable[[int], None] = lambda _: None) -> None:
        self.place = place
        self._at_work = at_work
        try:
            import fsspec

            kind = fsspec.get_filesystem_class(SCHEMES[place.kind])
        except ImportError as error:
            what = f"{PACKAGES[place.kind]} is not installed: {error}"
            raise Unavailable(what, where=place.url, hint=EXTRA) from error
        with self._told(""):
            self._client: Any = kind(
                **place.options, skip_instance_cache=True, use_listings_cache=False
            )

    def url(self, key: str) -> str:
        """Return the URL of an object."""
        return f"{self.place.url}/{key}"

    def put(self, source: Path, key: str) -> None:
        """Make an object the copy of a file, unless it is one; every byte of it is read again.

        Raises:
            IntegrityError: it is not what was sent.
            OSError: the file cannot be read.
            Unavailable: the store refuses, or does not answer.
        """
        size, digest = source.stat().st_size, self._digest_of_file(source)
        if not self._is_copy(key, size, digest):
            with self._told(key):
                self._send(source, key, size)
            if not self._is_copy(key, size, digest):
                raise IntegrityError("the object is not what was sent", where=self.url(key))

    def get(self, key: str, target: Path, most: int) -> None:
        """Write an object of at most ``most`` bytes to a new file, durably.

        Raises:
            IntegrityError: it is larger.
            NotFound: there is no such object.
            OSError: the file cannot be written.
            Unavailable: the store refuses, or does not answer.
        """
        write = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, files.FILE_MODE)
        try:
            for data in self._read(key):
                most -= len(data)
                if most < 0:
                    raise IntegrityError("it is larger than what was saved", where=self.url(key))
                files.write_all(write, data)
            os.fsync(write)
        finally:
            os.close(write)

    def remove(self, folder: str, first: str) -> None:
        """Remove all objects below a folder, ``first`` before all others.

        Raises:
            Unavailable: the store refuses, does not answer, or lists what is elsewhere.
        """
        with self._told(folder):
            below = f"{self.place.path}/{folder}/"
            there = self._client.find(below)
            if foreign := [path for path in there if not path.startswith(below)]:
                what = f"the store lists what is not below it, as {foreign[0]}: nothing is removed"
                raise Unavailable(what, where=self.url(folder))
            for path in sorted(there, key=lambda path: (path != below + first, path)):
                self._client.rm_file(path)

    def _is_copy(self, key: str, size: int, digest: str) -> bool:
        try:
            with self._told(key):
                there = self._client.info(f"{self.place.path}/{key}")["size"]
            return bool(there == size) and self._digest(self._read(key)) == digest
        except NotFound:
            return False

    def _send(self, source: Path, key: str, size: int) -> None:
        from fsspec.callbacks import Callback

        store = self

        class PartSent(Callback):  # type: ignore[misc]
            def relative_update(self, inc: int = 1) -> None:
                store._at_work(inc)

        options: dict[str, Any] = {"max_concurrency": _AT_ONCE}
        if self.place.kind != "azure":
            options["chunksize"] = max(_PART, math.ceil(size / _MOST_PARTS))
        if self.place.kind == "gcs":
            del options["max_concurrency"]
        self._client.put_file(
            str(source), f"{self.place.path}/{key}", callback=PartSent(), **options
        )

    def _read(self, key: str) -> Iterator[bytes]:
        path = f"{self.place.path}/{key}"
        with self._told(key), self._client.open(path, "rb", block_size=_PIECE) as file:
            while data := file.read(_PIECE):
                self._at_work(len(data))
                yield data

    def _digest_of_file(self, source: Path) -> str:
        with files.open_file(source) as file:
            return self._digest(iter(lambda: file.read(_PIECE), b""))

    def _digest(self, pieces: Iterator[bytes]) -> str:
        found = blake3()
        for data in pieces:
            self._at_work(0)
            found.update(data)
        return found.hexdigest()

    @contextlib.contextmanager
    def _told(self, key: str) -> Iterator[None]:
        """Turn whatever a client raises into an error of hpcdet without secrets."""
        try:
            yield
        except (HpcdetError, GeneratorExit):
            raise
        except FileNotFoundError as error:
            raise NotFound(self._shown(error), where=self.url(key)) from None
        except Exception as error:
            raise Unavailable(self._shown(error), where=self.url(key), hint=_WAITS) from None

    def _shown(self, error: Exception) -> str:
        text = " ".join(str(error).split()) or type(error).__name__
        for secret in self.place.secrets:
            text = text.replace(secret, "(secret)")
        return text[:400]
