"""What the verbs that read print, byte for byte as it was recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import RECORDED
from tests.commands import Cli
from tests.read import printed


@pytest.mark.parametrize("name", printed.MADE)
def test_verbs_print_what_they_printed(
    cli: Cli, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = printed.printed(cli, name, monkeypatch)
    (tmp_path / f"{name}.txt").write_text(found)  # to be recorded, where a change is meant
    assert found == (RECORDED / "printed" / f"{name}.txt").read_text()
