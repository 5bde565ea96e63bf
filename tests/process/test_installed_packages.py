"""The packages that a process can import."""

from __future__ import annotations

import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from hpcdet.process import installed_packages


def install(folder: Path, stem: str, name: str = "", version: str = "") -> Path:
    kind = "METADATA" if stem.endswith(".dist-info") else "PKG-INFO"
    told = stem.rpartition(".")[0].partition("-")
    (folder / stem).mkdir(parents=True)
    what = f"Metadata-Version: 2.1\nName: {name or told[0]}\nVersion: {version or told[2]}\n"
    (folder / stem / kind).write_text(what)
    return folder / stem / kind


def test_of_two_the_first_on_the_path_counts_and_a_package_s_own_copies_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / name for name in ("first", "second", "tools/_vendor")]
    for number, folder in enumerate(folders):
        for name in ("one", f"only_{number}"):
            install(folder, f"{name}-{number}.dist-info")
    monkeypatch.setattr(sys, "path", [*map(str, folders)])
    assert installed_packages.installed() == {"one": "0", "only_0": "0", "only_1": "1"}


def test_what_a_record_knows_in_this_version_is_named_as_there_and_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Versions are those of the folder, whatever the record says."""
    read = []
    at = metadata.Distribution.at
    monkeypatch.setattr(
        metadata.Distribution, "at", lambda path: (read.append(Path(path).name), at(path))[1]
    )
    install(tmp_path, "ruamel_yaml-1.0.dist-info", "ruamel.yaml").unlink()
    for stem in ("known-1.0+cpu.dist-info", "newer-2.0.dist-info", "own-3.0.dist-info"):
        install(tmp_path, stem)
    install(tmp_path, "old.egg-info", "Old", "4")
    (tmp_path / "removed-5.0.dist-info").mkdir()  # but for its folder
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    known = {"ruamel.yaml": "1.0", "known": "1.0+cpu", "newer": "1.0", "gone": "9"}
    found = {"ruamel.yaml": "1.0", "known": "1.0+cpu", "newer": "2.0", "own": "3.0", "Old": "4"}
    assert installed_packages.installed(known) == found
    wanted = [f"{one}-info" for one in ("newer-2.0.dist", "old.egg", "own-3.0.dist")]
    wanted.append("removed-5.0.dist-info")
    assert sorted(read) == wanted
    assert installed_packages.installed(known) == found
    assert sorted(read) == wanted, "once in a process"


def test_it_finds_what_python_finds_here_and_in_archives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    egg = tmp_path / "egg-2-py3.egg"
    install(egg, "EGG-INFO", "egg", "2")
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as archive:
        archive.writestr("packed-1.dist-info/METADATA", "Name: packed\nVersion: 1\n")
    more = [str(egg), str(tmp_path / "packed.zip"), str(tmp_path / "none")]
    here = [one for one in sys.path if not one.endswith("_vendor")]
    monkeypatch.setattr(sys, "path", [*here, *more])
    named = {one.metadata["Name"]: one.version for one in reversed([*metadata.distributions()])}
    found = installed_packages.installed()
    assert found.items() >= {"egg": "2", "packed": "1"}.items()
    assert found == named == installed_packages.installed(found)
