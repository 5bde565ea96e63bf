"""Checks of ``checkpoint_storage`` where it names an object store."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator

from hpcdet.config.check.problems import Problem
from hpcdet.store.config.sections.checkpoint_storage import (
    KEYS,
    SECRETS,
    SECTION,
    CheckpointStorage,
)
from hpcdet.store.objects.store_place import EXTRA, PACKAGES

_URLS = ("endpoint_url", "account_url")


def errors(storage: CheckpointStorage) -> Iterator[Problem]:
    """Yield every problem that makes the section impossible."""
    own = KEYS.get(storage.type, ())
    for key in sorted({key for keys in KEYS.values() for key in keys} - set(own)):
        if getattr(storage, key) is not None:
            of = " or ".join(kind for kind, keys in KEYS.items() if key in keys)
            what = f"the key is of {of}, and checkpoint_storage.type is {storage.type}"
            yield Problem(f"{SECTION}.{key}", what, f"leave it out, or write type: {of}")
    yield from _lacking(storage)
    for key in _URLS:
        url = getattr(storage, key)
        if url is not None and not re.fullmatch(r"https?://[^/@?#\s]+(/[^@?#\s]*)?", url):
            what = "expected http(s)://HOST without user, password or token"
            yield Problem(f"{SECTION}.{key}", what, f"a secret belongs into {' or '.join(SECRETS)}")
    for key in ("bucket", "container"):
        if re.search(r"[/\s]|://", getattr(storage, key) or ""):
            yield Problem(f"{SECTION}.{key}", "expected a name alone", "folders belong into prefix")
    if ".." in (storage.prefix or "").split("/"):
        yield Problem(f"{SECTION}.prefix", "'..' names no folder of an object store")


def warnings(storage: CheckpointStorage) -> Iterator[Problem]:
    """Yield what would keep copies from being made here."""
    package = PACKAGES.get(storage.type, "")
    if package and importlib.util.find_spec(package) is None:
        yield Problem(f"{SECTION}.type", f"nothing is copied without {package}: {EXTRA}")


def _lacking(storage: CheckpointStorage) -> Iterator[Problem]:
    for kind, key in (("s3", "bucket"), ("gcs", "bucket"), ("azure", "container")):
        if storage.type == kind and getattr(storage, key) is None:
            yield Problem(f"{SECTION}.{key}", f"{kind} needs a {key}", f"add {key}: NAME")
    if storage.type == "s3" and (storage.access_key is None) != (storage.secret_key is None):
        missing = "access_key" if storage.access_key is None else "secret_key"
        what = "access_key and secret_key go together"
        yield Problem(f"{SECTION}.{missing}", what, f"add {missing}: {{env: NAME}}")
    if storage.type != "azure":
        return
    if (storage.account_url is None) == (storage.connection_string is None):
        what = "azure needs either account_url or connection_string"
        yield Problem(f"{SECTION}.account_url", what, "https://ACCOUNT.blob.core.windows.net")
    if storage.credential is not None and storage.account_url is None:
        what = "it goes with account_url: a connection_string has its own"
        yield Problem(f"{SECTION}.credential", what)
