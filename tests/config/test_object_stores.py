"""``checkpoint_storage`` with an object store: its keys and secrets, and its client's settings."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpcdet.config.load import rewritten, secret_references
from hpcdet.config.load.load_config import load
from hpcdet.errors import ConfigError, UsageError
from hpcdet.jobs.create import likely_secrets
from hpcdet.store.config.sections.checkpoint_storage import CheckpointStorage
from hpcdet.store.objects import store_place

S3 = {"type": "s3", "bucket": "kept", "prefix": "ada"}
SECRET = "a-secret-that-no-file-may-hold"
AZURE = "https://ada.blob.core.windows.net"


def written(folder: Path, section: dict[str, Any]) -> Path:
    values = {
        "name": "x",
        "entrypoint": "model_def:Trial",
        "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 9}},
        "checkpoint_storage": section,
    }
    file = folder / "x.yaml"
    file.write_text(yaml.safe_dump(values))
    return file


@pytest.mark.parametrize(
    "section",
    [
        S3,
        {"type": "gcs", "bucket": "kept"},
        {"type": "azure", "container": "kept", "account_url": AZURE},
        {"type": "azure", "container": "kept", "connection_string": {"env": "A"}},
        {**S3, "access_key": {"env": "A"}, "secret_key": {"file": "~/.s"}},
    ],
)
def test_determineds_keys_are_taken(tmp_path: Path, section: dict[str, Any]) -> None:
    loaded = load(written(tmp_path, section))
    assert loaded.config.checkpoint_storage == CheckpointStorage(**section)
    assert not loaded.secrets and not loaded.warnings


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ({"type": "s3"}, "bucket"),
        ({"type": "gcs", "bucket": "a/b"}, "bucket"),
        ({**S3, "prefix": "a/../b"}, "prefix"),
        ({**S3, "access_key": {"env": "A"}}, "secret_key"),
        ({**S3, "endpoint_url": "https://me:word@host"}, "endpoint_url"),
        ({**S3, "container": "c"}, "container"),
        ({"bucket": "kept"}, "bucket"),
        ({"type": "azure", "account_url": AZURE}, "container"),
        ({"type": "azure", "container": "c"}, "account_url"),
        ({"type": "azure", "container": "c", "account_url": f"{AZURE}?sig=x"}, "account_url"),
        ({**S3, "access_key": "A", "secret_key": {"stored": "other"}}, "secret_key"),
        ({**S3, "access_key": "A", "secret_key": ["list"]}, "secret_key"),
    ],
)
def test_what_cannot_be_is_refused_by_its_key(
    tmp_path: Path, section: dict[str, Any], key: str
) -> None:
    with pytest.raises(ConfigError, match=f"checkpoint_storage.{key}: "):
        load(written(tmp_path, section))


def test_a_secret_in_the_config_leaves_it_and_all_copies(tmp_path: Path) -> None:
    section = {**S3, "access_key": "A-KEY-OF-ADA", "secret_key": SECRET}
    file = written(tmp_path, section)
    loaded = load(file)
    names = ("access_key", "secret_key")
    found = loaded.config.raw["checkpoint_storage"]
    assert [found[key] for key in names] == [{"stored": f"checkpoint_storage.{k}"} for k in names]
    assert loaded.secrets["checkpoint_storage.secret_key"] == SECRET
    assert SECRET not in repr(loaded) and SECRET not in str(loaded.resolved())
    copy = secret_references.redacted(file.read_bytes())
    assert SECRET.encode() not in copy and b"A-KEY-OF-ADA" not in copy
    assert yaml.safe_load(copy)["checkpoint_storage"]["bucket"] == "kept"
    with pytest.raises(ConfigError, match=r"the secret checkpoint_storage\.access_key"):
        likely_secrets.refuse_literal(file.read_bytes(), loaded.secrets, "x.yaml")
    for word in (f"checkpoint_storage.secret_key={SECRET}", f"checkpoint_storage={{x: {SECRET}}}"):
        assert SECRET not in " ".join(likely_secrets.shown(["--set", word], loaded.secrets))
    text = rewritten.config(file)
    assert SECRET not in text and "CHECKPOINT_STORAGE_SECRET_KEY" in text
    assert load(written(tmp_path, S3)).config.raw["checkpoint_storage"].keys().isdisjoint(names)


def test_a_missing_package_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    [warning] = load(written(tmp_path, S3)).warnings
    assert "pip install 'hpcdet[cloud]'" in warning


def test_keys_and_secrets_become_settings_of_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "k")
    monkeypatch.setenv("SECRET", SECRET)
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    keys = {"access_key": {"env": "KEY"}, "secret_key": {"env": "SECRET"}}

    def of(**section: Any) -> store_place.StorePlace:
        return store_place.of_storage(CheckpointStorage(**section), tmp_path / "secrets.json")

    place = of(**S3, **keys, endpoint_url="http://host:9")
    assert place.url == "s3://kept/ada"
    shown = {name: place.options[name] for name in ("key", "secret", "endpoint_url")}
    assert shown == {"key": "k", "secret": SECRET, "endpoint_url": "http://host:9"}
    assert SECRET not in repr(place)
    assert "key" not in of(**S3).options  # the AWS tools' own ways
    place = of(type="gcs", bucket="kept")
    assert (place.url, place.options) == ("gs://kept", {"token": "google_default"})

    azure = {"type": "azure", "container": "kept", "prefix": "/ada/"}
    place = of(**azure, connection_string={"env": "SECRET"})
    assert place.url == "az://kept/ada" and place.options["connection_string"] == SECRET
    account = of(**azure, account_url=AZURE).options
    assert (account["account_name"], account["account_host"]) == ("ada", AZURE[8:])
    said = of(**azure, account_url=AZURE, credential={"env": "KEY"}).options["connection_string"]
    assert said == f"BlobEndpoint={AZURE};AccountName=ada;AccountKey=k"
    monkeypatch.setenv("KEY", "?sv=1&sig=2")
    said = of(**azure, account_url=AZURE, credential={"env": "KEY"}).options["connection_string"]
    assert said == f"BlobEndpoint={AZURE};SharedAccessSignature=sv=1&sig=2"
    with pytest.raises(ConfigError, match="ABSENT is not set"):
        of(**azure, connection_string={"env": "ABSENT"})


@pytest.mark.parametrize("package", ["gcsfs", "adlfs", "s3fs"])
def test_clients_know_the_settings(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are made with them; none of them connects before it is asked for something."""
    import fsspec

    kind = {"gcsfs": "gcs", "adlfs": "azure", "s3fs": "s3"}[package]
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    monkeypatch.setenv("KEY", "a2V5")
    more: dict[str, Any] = {"bucket": "kept"}
    if kind == "azure":
        more = {"container": "kept", "account_url": AZURE, "credential": {"env": "KEY"}}
    place = store_place.of_storage(CheckpointStorage(type=kind, **more), Path("none"))  # type: ignore[arg-type]
    client = fsspec.filesystem(store_place.SCHEMES[kind], **place.options, skip_instance_cache=True)
    assert type(client).__module__.startswith(package)


@pytest.mark.parametrize(
    "url", ["s3://", "ftp://host/x", "s3://me:word@bucket/x", "az://c/x?sig=1", "s3://b/../x"]
)
def test_what_is_no_url_of_a_store_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        store_place.of_url(url)


def test_parts_of_a_secret_are_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_CONNECTION", "AccountName=ada;AccountKey=c2VjcmV0;EndpointSuffix=x")
    monkeypatch.setenv("TEST_SAS", "?sv=2024&sig=ab%2Fcd&se=2026")
    for key, word in (("connection_string", "CONNECTION"), ("credential", "SAS")):
        url = {"account_url": "https://ada.blob.x"} if key == "credential" else {}
        section = {"type": "azure", "container": "c", key: {"env": f"TEST_{word}"}, **url}
        place = store_place.of_storage(CheckpointStorage(**section), Path("none"))  # type: ignore[arg-type]
        parts = {"c2VjcmV0"} if word == "CONNECTION" else {"ab%2Fcd", "ab/cd"}
        assert parts < set(place.secrets) and "ada" not in place.secrets


def test_a_url_of_an_experiments_store_has_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = CheckpointStorage(**S3, endpoint_url="http://host:9")  # type: ignore[arg-type]
    like = store_place.of_storage(storage, Path("none"))
    place = store_place.of_url("s3://other/folder/", like)
    assert (place.path, place.options) == ("other/folder", like.options)
    with pytest.raises(UsageError, match="store is s3"):
        store_place.of_url("gs://other", like)
