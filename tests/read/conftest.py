"""An experiment that has everything in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import Builder, sweep


@pytest.fixture
def swept(tmp_path: Path) -> Builder:
    return sweep(tmp_path / "digits-7f3a")
