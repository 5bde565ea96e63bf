"""``data.paths``: what is digested, what is read again, what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hpcdet.errors import ConfigError, IntegrityError
from hpcdet.jobs.create import create, data_files
from hpcdet.policy.provenance import source_manifests
from hpcdet.policy.provenance.source_manifests import SourceManifest
from hpcdet.site_files import load_site as sites
from hpcdet.store.folder import derived_store, private_folders
from hpcdet.store.folder.derived_store import KnownDigests
from tests.experiments import Plain, config

OLD = 1_700_000_000


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("hpcdet.store.folder.derived_store._SETTLED_S", 0.0)
    return tmp_path / "cache"


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    for name, text in {"a.bin": "one", "sub/b.bin": "two"}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        os.utime(folder / name, (OLD, OLD))
    return folder


def read(value: Any, model: Path) -> tuple[list[SourceManifest], int]:
    """The manifests of ``data.paths``, and the bytes that were read for them."""
    count = 0
    opened = source_manifests._read

    def counted(*words: Any) -> int:
        nonlocal count
        count += (size := opened(*words))
        return size

    with pytest.MonkeyPatch.context() as patch, KnownDigests() as known:
        patch.setattr(source_manifests, "_read", counted)
        made = [
            data_files.digested(place, place.names(), lambda _: None, known).manifest
            for place in data_files.located({"paths": value}, model)
        ]
    return made, count


def test_folders_and_files_have_the_manifests_that_the_verb_makes(images: Path) -> None:
    made, count = read([str(images), str(images / "a.bin")], images.parent)
    assert count == 6, "the file is in the folder, too, and read once"
    assert made[0].files == source_manifests.make(images, "data").files
    assert made[0].root == source_manifests.make(images, "data").root
    assert [one.name for one in made[1].files] == ["a.bin"]
    assert made[1].files[0] == made[0].files[0]


def test_a_path_is_relative_to_the_model_or_has_variables(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMAGES", str(images))
    for text in ("images", "$IMAGES", f"{images}"):
        [place] = data_files.located({"paths": text}, images.parent)
        assert (place.given, place.path) == (text, images)


@pytest.mark.parametrize("value", [None, {"train": "/no"}, ["/no", 3], 7, "", [""], []])
def test_other_shapes_are_the_codes_own(value: Any, tmp_path: Path) -> None:
    assert data_files.located({"paths": value}, tmp_path) == []
    assert data_files.located({}, tmp_path) == []


def test_a_path_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no/such is not there") as found:
        data_files.located({"paths": ["no/such"]}, tmp_path)
    assert found.value.where == "data.paths"
    assert str(tmp_path / "no" / "such") in found.value.hint
    (tmp_path / "empty").mkdir()
    with pytest.raises(IntegrityError, match="there are no files in it"):
        read("empty", tmp_path)


def test_what_looks_as_before_is_not_read_again(images: Path, cache: Path) -> None:
    first, count = read(str(images), images)
    assert count == 6
    assert read(str(images), images) == (first, 0)
    moved = images.rename(images.with_name("moved"))
    again, count = read(str(moved), moved)
    assert (again[0].root, count) == (first[0].root, 0), "a rename is a change of the folder alone"


def test_a_change_is_seen_though_size_and_time_are_the_same(images: Path) -> None:
    first, _ = read(str(images), images)
    (images / "a.bin").write_text("eno")
    os.utime(images / "a.bin", (OLD, OLD))
    second, count = read(str(images), images)
    assert count == 3 and second[0].root != first[0].root
    assert second[0].root == source_manifests.make(images, "data").root


def test_what_has_just_changed_is_not_remembered(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcdet.store.folder.derived_store._SETTLED_S", 3600.0)
    assert [read(str(images), images)[1] for _ in range(2)] == [6, 6]


def test_without_its_cache_nothing_changes(images: Path, cache: Path) -> None:
    first, _ = read(str(images), images)
    derived_store.opened().close()
    for path in private_folders.of_host("derived").iterdir():
        path.write_bytes(b"no database" * 999)
    derived_store.reopened()
    assert read(str(images), images) == (first, 6)
    assert read(str(images), images) == (first, 0), "a damaged one is made anew"
    cache.chmod(0o777)
    (cache / "hpcdet").chmod(0o777)
    derived_store.reopened()
    assert read(str(images), images) == (first, 6), "others could have written it"


def test_an_experiment_and_its_copies_keep_the_manifests(images: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "model_def.py").write_text("x = 1\n")
    with KnownDigests() as known:
        data = [
            data_files.digested(place, place.names(), lambda _: None, known)
            for place in data_files.located({"paths": ["images"]}, tmp_path)
        ]
    site = sites.load("local")
    paths = create.create(Plain(config(), {}), site, model, tmp_path / "root", data=data)
    paths.fingerprints.mkdir()
    paths.fingerprint("ab12").write_text("{}")
    [entry] = json.loads(paths.provenance.read_text())["data"]
    assert entry == {
        "given": "images", "path": str(images), "manifest": "data/0001.manifest.json",
        "digest": source_manifests.make(images, "data").root, "files": 2, "bytes": 6,
    }  # fmt: skip
    found = SourceManifest.load(paths.root / entry["manifest"])
    assert found == data[0].manifest
    assert source_manifests.verify(found, Path(found.folder), deep=True) == []
    other = create.again(paths, lambda _: None)
    assert SourceManifest.load(other.data_manifest(1)) == found
    assert other.fingerprint("ab12").is_file()
