"""The packages that a process can import."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hpcdet.process import installed_packages


def test_of_two_the_first_on_the_path_counts_and_a_package_s_own_copies_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / name for name in ("first", "second", "tools/_vendor")]
    for number, folder in enumerate(folders):
        for name in ("one", f"only-{number}"):
            info = folder / f"{name}-{number}.dist-info"
            info.mkdir(parents=True)
            (info / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n"
            )
    monkeypatch.setattr(sys, "path", [*map(str, folders)])
    assert installed_packages.installed() == {"one": "0", "only-0": "0", "only-1": "1"}
