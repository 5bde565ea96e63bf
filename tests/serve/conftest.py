"""A server over two experiments, as a user starts it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hpcdet.tasks.servers.private_socket import SocketConnection
from tests.builders import sweep


@dataclass(frozen=True)
class Answer:
    """What a server has answered."""

    status: int
    headers: Mapping[str, str]
    body: str

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Served:
    """A running server; ``told``: the line that it has printed."""

    root: Path
    told: Mapping[str, Any]
    process: subprocess.Popen[str]

    def ask(
        self,
        address: str,
        *,
        method: str = "GET",
        host: str = "localhost",
        token: str | None = None,
        path: Path | None = None,
        **headers: str,
    ) -> Answer:
        """Ask with the token; "": without one."""
        connection = SocketConnection(path or Path(self.told["socket"]))
        connection.timeout = 120  # a large experiment on a busy machine
        with contextlib.closing(connection):
            connection.putrequest(method, address, skip_host=True)
            connection.putheader("Host", host)
            shown = self.told["token"] if token is None else token
            if shown:
                connection.putheader("Authorization", f"Bearer {shown}")
            for name, value in headers.items():
                connection.putheader(name.replace("_", "-"), value)
            connection.endheaders()
            got: http.client.HTTPResponse = connection.getresponse()
            return Answer(
                got.status, {k.lower(): v for k, v in got.getheaders()}, got.read().decode()
            )

    def items(self, address: str) -> list[dict[str, Any]]:
        """The items of an answer with status 200."""
        answer = self.ask(f"/api/v1/{address}")
        assert answer.status == 200, answer.body
        items: list[dict[str, Any]] = answer.json["items"]
        return items


@contextlib.contextmanager
def serving(root: Path, *words: str, **environ: str) -> Iterator[Served]:
    """Run ``hpcdet serve -o json`` as long as the context lasts."""
    argv = [sys.executable, "-m", "hpcdet", "-C", str(root), "serve", "-o", "json", *words]
    process = subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environ},
    )
    try:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        assert line, process.stderr.read()
        yield Served(root, json.loads(line), process)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(60)
        process.communicate()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("served")
    sweep(root / "digits-7f3a")
    sweep(root / "digits-91c0")
    with serving(root) as found:
        yield found
