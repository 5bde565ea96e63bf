"""The place of copies in an object store, from a config or a URL, and its client's settings."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from hpcdet.errors import UsageError
from hpcdet.store.config import data_secrets
from hpcdet.store.config.sections.checkpoint_storage import SECRETS, SECTION, CheckpointStorage

PACKAGES = {"s3": "s3fs", "gcs": "gcsfs", "azure": "adlfs"}
"""The package of fsspec for each store."""
EXTRA = "pip install 'hpcdet[cloud]'"
SCHEMES = {"s3": "s3", "gcs": "gs", "azure": "az"}
_OTHER_SCHEMES = {"gcs": "gcs", "azure": "azure", "abfs": "azure"}
_CONNECT_S, _READ_S = 10, 60


@dataclass(frozen=True)
class StorePlace:
    """A folder of an object store.

    Attributes:
        kind: of ``PACKAGES``.
        path: bucket or container, and the folder in it.
        options: of fsspec's client.
        secrets: texts that no message may hold.
    """

    kind: str
    path: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @property
    def url(self) -> str:
        return f"{SCHEMES[self.kind]}://{self.path}"


def is_url(text: str) -> bool:
    """True for the URL of an object store."""
    return re.match(r"[a-z0-9]+://", text) is not None


def of_url(text: str, like: StorePlace | None = None) -> StorePlace:
    """Return the place of a URL.

    Args:
        like: a place of the same store, whose server and credentials it has; None: the client
            finds them as the store's own tools do.

    Raises:
        UsageError: it is no URL of a store that is known, or of another one than ``like``.
    """
    scheme, _, rest = text.partition("://")
    schemes = {name: kind for kind, name in SCHEMES.items()} | _OTHER_SCHEMES
    path = rest.strip("/")
    hint = "s3://BUCKET/FOLDER, gs://BUCKET/FOLDER or az://CONTAINER/FOLDER"
    if scheme not in schemes or not path:
        raise UsageError("this is no URL of an object store", where=text, hint=hint)
    if re.search(r"[@?#]|(^|/)\.\.(/|$)|//", path):
        what = "the URL has more than a bucket and a folder"
        raise UsageError(what, where=text.partition("?")[0], hint=hint)
    kind = schemes[scheme]
    if like is not None:
        if like.kind != kind:
            raise UsageError(f"the experiment's store is {like.kind}", where=text)
        return replace(like, path=path)
    return StorePlace(kind, path, _options(kind, CheckpointStorage(), {}))


def of_storage(storage: CheckpointStorage, stored: Path) -> StorePlace:
    """Return the place that a config names.

    Args:
        stored: ``secrets.json`` of the experiment, which holds the literals.

    Raises:
        ConfigError: a secret is not to be had here. The message holds none.
    """
    given = {key: getattr(storage, key) for key in SECRETS}
    found = {
        key: str(data_secrets.value(f"{SECTION}.{key}", reference, stored))
        for key, reference in given.items()
        if reference is not None
    }
    path = f"{storage.bucket or storage.container}/{(storage.prefix or '').strip('/')}".strip("/")
    options = _options(storage.type, storage, found)
    return StorePlace(storage.type, path, options, tuple(_texts(found.values())))


def _texts(secrets: Iterable[str]) -> Iterator[str]:
    """Yield secrets, and the signatures and keys in them, as errors may have them."""
    for secret in secrets:
        yield secret
        for part in re.split("[;&?]", secret):
            name, _, text = part.partition("=")
            if text and name.lower() in ("sig", "accountkey", "sharedaccesssignature"):
                yield from (text, unquote(text))


def _options(kind: str, storage: CheckpointStorage, secret: Mapping[str, str]) -> dict[str, Any]:
    if kind == "s3":
        return _of_s3(storage, secret)
    if kind == "gcs":
        # without it, gcsfs would in the end try to be nobody
        return {"token": "anon" if os.environ.get("STORAGE_EMULATOR_HOST") else "google_default"}
    times = {"connection_timeout": _CONNECT_S, "read_timeout": _READ_S}
    return _of_azure(storage, secret) | times


def _of_s3(storage: CheckpointStorage, secret: Mapping[str, str]) -> dict[str, Any]:
    times = {"connect_timeout": _CONNECT_S, "read_timeout": _READ_S}
    options: dict[str, Any] = {"config_kwargs": {**times, "retries": {"max_attempts": 2}}}
    if storage.endpoint_url is not None:
        options["endpoint_url"] = storage.endpoint_url
    if "access_key" in secret:
        options |= {"key": secret["access_key"], "secret": secret["secret_key"]}
    return options


def _of_azure(storage: CheckpointStorage, secret: Mapping[str, str]) -> dict[str, Any]:
    """Options of adlfs; a credential makes a connection string, which no variable overrides."""
    if "connection_string" in secret:
        return {"connection_string": secret["connection_string"]}
    if storage.account_url is None:
        return {}
    url = urlsplit(storage.account_url)
    host = url.hostname or ""
    # of an emulator the account is the first folder, elsewhere the first word of the host
    account = url.path.strip("/") or host.partition(".")[0]
    if (credential := secret.get("credential")) is None:
        return {"account_name": account, "account_host": url.netloc}
    key = f"AccountName={account};AccountKey={credential}"
    if "sig=" in credential:
        key = f"SharedAccessSignature={credential.lstrip('?')}"
    return {"connection_string": f"BlobEndpoint={storage.account_url.rstrip('/')};{key}"}
