"""A server of PBS with an empty queue, if one answers here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import pbs
from tests.pbs_runs import PbsLab


@pytest.fixture
def server() -> Iterator[pbs.PbsServer]:
    """The server; this user's jobs are ended at the end."""
    if reason := pbs.why_not():
        pytest.skip(reason)
    found = pbs.PbsServer()
    found.clear()
    yield found
    found.clear()


@pytest.fixture
def lab(server: pbs.PbsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PbsLab]:
    """A folder for experiments on the server."""
    made = PbsLab(server, tmp_path, monkeypatch)  # type: ignore[arg-type]
    yield made
    made.end()
