"""Tasks of the local backend in a root folder that another user could look into."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import experiments as x
from tests.commands import Cli


@pytest.fixture
def local(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    """The command line at the site ``local``; what runs in the end is killed."""
    monkeypatch.setenv("HPCDET_SITE", "local")
    monkeypatch.chdir(tmp_path)
    with x.local_jobs(tmp_path / "local-state"):
        yield cli


@pytest.fixture
def visible(local: Cli, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    """The same, with a root folder on whose way no other user is kept out."""
    with tempfile.TemporaryDirectory(prefix="hpcdet-visible-") as made:
        Path(made).chmod(0o755)
        local.root = Path(made)
        monkeypatch.setenv("HPCDET_ROOT", made)
        yield local
