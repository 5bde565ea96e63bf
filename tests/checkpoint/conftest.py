"""Saves that are held back until a test lets them go on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from hpcdet.checkpoint.format import shard
from tests.checkpoint.background import GENEROUS_S


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """While this is cleared, nothing is written."""
    event = threading.Event()
    event.set()
    real = shard.persist

    def persist(*arguments: Any) -> Any:
        assert event.wait(GENEROUS_S)
        return real(*arguments)

    monkeypatch.setattr(shard, "persist", persist)
    yield event
    event.set()
