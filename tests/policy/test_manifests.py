"""Manifests of sources: the same data have the same root, and whatever has changed is found."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdet.errors import IntegrityError
from hpcdet.policy.codes import GovernanceBroken
from hpcdet.policy.merkle import Merkle
from hpcdet.policy.provenance import source_manifests as manifests
from hpcdet.policy.provenance.source_manifests import SourceManifest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    (data / "b").mkdir(parents=True)
    (data / "a.txt").write_bytes(b"one\ntwo\r\nthree")
    (data / "b" / "c.bin").write_bytes(bytes(range(10)))
    (data / ".hidden").write_bytes(b"")
    return data


def by_definition(leaves: list[bytes]) -> bytes:
    """RFC 6962, section 2.1."""
    if not leaves:
        return hashlib.sha256().digest()
    if len(leaves) == 1:
        return hashlib.sha256(b"\0" + leaves[0]).digest()
    k = 1
    while 2 * k < len(leaves):
        k *= 2
    left, right = by_definition(leaves[:k]), by_definition(leaves[k:])
    return hashlib.sha256(b"\1" + left + right).digest()


@given(st.lists(st.binary(max_size=4), max_size=40))
def test_the_tree_is_that_of_rfc_6962(leaves: list[bytes]) -> None:
    tree = Merkle()
    for leaf in leaves:
        tree.add(leaf)
    assert tree.root == f"sha256:{by_definition(leaves).hex()}"


def test_a_manifest_lists_every_file(folder: Path) -> None:
    seen: list[int] = []
    found = manifests.make(folder, "hosp-a", watch=seen.append)
    assert [(one.name, one.bytes) for one in found.files] == [
        (".hidden", 0),
        ("a.txt", 14),
        ("b/c.bin", 10),
    ]
    assert found.files[2].sha256 == f"sha256:{hashlib.sha256(bytes(range(10))).hexdigest()}"
    assert sum(seen) == 24
    assert found == manifests.make(folder, "hosp-a")
    assert manifests.verify(found, folder, deep=True) == []
    others = (
        manifests.make(folder, "hosp-b"),
        manifests.make(folder, "hosp-a", records="lines"),
        manifests.make(folder, "hosp-a", about={"license": "CC0"}),
    )
    assert len({found.root, *(one.root for one in others)}) == 4


def test_it_is_read_as_it_was_written(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    found = manifests.make(folder, "hosp-a", about={"name": "Hôpital"}, records="bytes:4")
    path.write_bytes(found.to_bytes())
    assert SourceManifest.load(path) == found


def test_what_changed_is_named(folder: Path) -> None:
    found = manifests.make(folder, "hosp-a")
    (folder / "a.txt").write_bytes(b"one\ntwO\r\nthree")
    (folder / "b" / "c.bin").unlink()
    (folder / "d").write_bytes(b"new")
    (folder / ".hidden").write_bytes(b"more")
    assert manifests.verify(found, folder, deep=True) == [
        "b/c.bin: is missing",
        "d: is not listed",
        ".hidden: has 4 bytes, 0 are listed",
        "a.txt: its contents are not those that are listed",
    ]


def test_of_many_files_a_sample_is_read(tmp_path: Path) -> None:
    for at in range(100):
        (tmp_path / f"{at:03}").write_bytes(b"12345")
    found, seen = manifests.make(tmp_path, "s"), list[int]()
    assert manifests.verify(found, tmp_path, watch=seen.append) == []
    assert sum(seen) == 5 * manifests.SAMPLE


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_tampered_byte_is_found(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    listed = (manifests.ListedFile("a", "sha256:" + "0" * 64, 3),)
    records = manifests.RecordDigests("lines", 2, "sha256:" + "1" * 64)
    found = SourceManifest("s", listed, {"license": "CC0"}, records)
    path = tmp_path_factory.getbasetemp() / "tampered.json"
    whole = bytearray(found.to_bytes())
    folder = whole.index(b'"folder": ".') + 11  # where the files lie is no part of what they are
    at = data.draw(st.integers(0, len(whole) - 1).filter(lambda at: at != folder))
    whole[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(bytes(whole))
    with pytest.raises(GovernanceBroken, match=r"G1[01]1"):
        SourceManifest.load(path)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../b", "a//b", "./a", ""])
def test_a_manifest_lists_nothing_outside_of_its_folder(tmp_path: Path, name: str) -> None:
    path = tmp_path / "m.json"
    listed = (manifests.ListedFile(name, "sha256:" + "0" * 64, 3),)
    path.write_bytes(SourceManifest("s", listed).to_bytes())
    with pytest.raises(GovernanceBroken, match="outside of its folder"):
        SourceManifest.load(path)


def test_another_version_is_not_taken_for_damage(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    text = manifests.make(folder, "s").to_bytes()
    path.write_bytes(text.replace(b"hpcdet-manifest/1", b"hpcdet-manifest/2"))
    with pytest.raises(GovernanceBroken, match="G101: its version"):
        SourceManifest.load(path)


# -- what lies in a folder -------------------------------------------------------------------


def test_links_may_not_leave_the_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (folder / "inside").symlink_to("a.txt")
    found = manifests.make(folder, "s")
    (folder / "inside").unlink()
    (folder / "inside").symlink_to(tmp_path / "secret")
    with pytest.raises(IntegrityError, match="leads out of the folder"):
        manifests.make(folder, "s")
    assert manifests.verify(found, folder, deep=True) == ["inside: it leads out of the folder"]
    (folder / "inside").unlink()
    (folder / "inside").symlink_to(folder / "b")
    with pytest.raises(IntegrityError, match="a folder is a symbolic link"):
        manifests.make(folder, "s")


def test_pipes_are_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(IntegrityError, match="a named pipe"):
        manifests.make(folder, "s")


def test_names_are_text(folder: Path) -> None:
    (folder / os.fsdecode(b"\xff")).write_text("x")
    with pytest.raises(IntegrityError, match="not UTF-8"):
        manifests.make(folder, "s")


def test_a_file_that_changes_meanwhile_is_refused(folder: Path) -> None:
    def write(_: int) -> None:
        with (folder / "a.txt").open("ab") as file:
            file.write(b"more")

    with pytest.raises(IntegrityError, match=r"a\.txt: it changed while it was read"):
        manifests.make(folder, "s", watch=write)


def test_an_empty_folder_is_no_source(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="no files"):
        manifests.make(tmp_path, "s")
    with pytest.raises(ValueError, match="no id of a source"):
        manifests.make(tmp_path, "Not An Id")


# -- records ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        ("lines", [b"one", b"two", b"three", bytes(range(10))]),
        ("bytes:6", [b"one\ntw", b"o\r\nthr", b"ee", bytes(range(6)), bytes(range(6, 10))]),
        ("files", [b"", b"one\ntwo\r\nthree", bytes(range(10))]),
    ],
)
def test_records_are_found_by_their_index(
    folder: Path, tmp_path: Path, form: str, wanted: list[bytes]
) -> None:
    if form == "lines":
        (folder / "b" / "c.bin").write_bytes(bytes(range(10)).replace(b"\n", b" "))
    sidecar, digests = io.BytesIO(), tmp_path / "m.records"
    found = manifests.make(folder, "s", records=form, sidecar=sidecar)
    digests.write_bytes(sidecar.getvalue())
    assert found.records is not None
    assert found.records.count == len(wanted)
    assert manifests.verify_records(found.records, digests) == ""
    everywhere, count = range(len(wanted)), len(wanted)
    assert manifests.spot_check(found.source, count, digests, wanted.__getitem__, everywhere) == []
    wrong = manifests.spot_check(
        found.source, count, digests, lambda at: wanted[at] + b"!" * (at == 1), [0, 1]
    )
    assert wrong == ["record 1 of s is not what was listed"]
    for index in (-1, len(wanted)):
        with pytest.raises(GovernanceBroken, match=f"record {index} is none"):
            manifests.spot_check(found.source, count, digests, wanted.__getitem__, [index])


def test_record_digests_are_what_was_written(folder: Path, tmp_path: Path) -> None:
    sidecar, digests = io.BytesIO(), tmp_path / "m.records"
    found = manifests.make(folder, "s", records="lines", sidecar=sidecar).records
    assert found is not None
    assert manifests.verify_records(found, digests) == "is missing"
    whole = sidecar.getvalue()
    digests.write_bytes(whole[:-1])
    assert "does not hold" in manifests.verify_records(found, digests)
    digests.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    assert "not what was written" in manifests.verify_records(found, digests)


@pytest.mark.parametrize("form", ["csv", "bytes:0", "bytes:-1", "bytes:999999999", "bytes:x", "0"])
def test_unknown_formats_of_records_are_refused(folder: Path, form: str) -> None:
    with pytest.raises(ValueError, match="no format of records"):
        manifests.make(folder, "s", records=form)


def test_the_root_covers_all_that_is_said(folder: Path) -> None:
    found = manifests.make(folder, "s", records="lines")
    assert found.records is not None
    roots = {
        found.root,
        dataclasses.replace(found, about={"name": "x"}).root,
        dataclasses.replace(found, records=dataclasses.replace(found.records, count=9)).root,
        dataclasses.replace(found, files=found.files[1:]).root,
    }
    assert len(roots) == 4
    assert dataclasses.replace(found, folder="elsewhere").root == found.root
