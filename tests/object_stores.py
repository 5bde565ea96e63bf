"""moto's server as an S3, and what lies in it as its own client sees it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from hpcdet.store.config.sections.checkpoint_storage import CheckpointStorage
from hpcdet.store.objects import store_place
from hpcdet.store.objects.store_place import StorePlace

KEY, SECRET = "AKEYOFNOBODY", "a-secret-that-no-file-may-hold"


@dataclass(frozen=True)
class Bucket:
    """A bucket of its own, at a server that takes any credentials."""

    endpoint: str
    name: str
    client: Any

    @property
    def section(self) -> dict[str, Any]:
        """``checkpoint_storage`` of a config; its secrets are variables."""
        return {
            "type": "s3",
            "bucket": self.name,
            "prefix": "kept/here",
            "endpoint_url": self.endpoint,
            "access_key": {"env": "TEST_S3_KEY"},
            "secret_key": {"env": "TEST_S3_SECRET"},
        }

    @property
    def place(self) -> StorePlace:
        return store_place.of_storage(CheckpointStorage(**self.section), Path("none"))

    def names(self) -> list[str]:
        found = self.client.list_objects_v2(Bucket=self.name).get("Contents", [])
        return sorted(str(one["Key"]).removeprefix("kept/here/") for one in found)

    def read(self, key: str) -> bytes:
        said = self.client.get_object(Bucket=self.name, Key=f"kept/here/{key}")
        return bytes(said["Body"].read())

    def write(self, key: str, data: bytes) -> None:
        self.client.put_object(Bucket=self.name, Key=f"kept/here/{key}", Body=data)


@contextlib.contextmanager
def served() -> Iterator[str]:
    """Serve on a free port of this machine; yields the endpoint."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


_NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with served() as found:
        yield found


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    monkeypatch.setenv("TEST_S3_KEY", KEY)
    monkeypatch.setenv("TEST_S3_SECRET", SECRET)
    keys = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET}
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys)
    name = f"bucket-{next(_NUMBERS)}"
    client.create_bucket(Bucket=name)
    return Bucket(endpoint, name, client)
