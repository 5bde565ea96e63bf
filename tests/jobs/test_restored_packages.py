"""Environments that are made again: whole, or not at all."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from hpcdet.errors import Unavailable
from hpcdet.jobs.create import provenance
from hpcdet.jobs.repeat import restored_packages
from hpcdet.jobs.repeat.restored_packages import FOLDER


def test_a_full_disk_at_the_end_leaves_nothing_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = {name: version for name, version in provenance.packages().items() if name == "click"}

    def full(self: Path, target: Any) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(Unavailable, match="No space left"):
        restored_packages.restore(recorded, "", tmp_path)
    assert list((tmp_path / FOLDER).iterdir()) == []
