"""Experiments that several tests of verbs read."""

from __future__ import annotations

import pytest

from tests.builders import Builder, sweep
from tests.commands import Cli


@pytest.fixture
def swept(cli: Cli) -> Builder:
    return sweep(cli.root / "digits-7f3a")
