"""A journal is read as a prefix of what was written, wherever it is cut or damaged."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdet.store.fs import files, journal

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(max_size=8)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=5,
)
RECORDS = st.lists(
    st.tuples(
        st.sampled_from(["metrics", "event", "x\n\u2028y"]),
        st.dictionaries(st.sampled_from(["a", "b", 'crc","', "ü"]), VALUES, max_size=3),
    ),
    min_size=1,
    max_size=5,
)


def written(path: Path, records: list[tuple[str, dict[str, Any]]]) -> list[journal.Line]:
    with journal.Writer(path) as writer:
        for kind, fields in records:
            writer.append(kind, **fields)
    return journal.read(path)


@settings(max_examples=10, deadline=None)
@given(records=RECORDS)
def test_cut_at_every_byte_it_replays_to_a_prefix_and_can_be_continued(
    tmp_path_factory: pytest.TempPathFactory, records: list[tuple[str, dict[str, Any]]]
) -> None:
    path = tmp_path_factory.mktemp("journal") / "a.jsonl"
    lines = written(path, records)
    assert [(ln["n"], ln["kind"]) for ln in lines] == [
        (i + 1, kind) for i, (kind, _) in enumerate(records)
    ]
    whole = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        complete = sum(end <= cut for end in ends)
        assert journal.read(path) == lines[:complete]
    with journal.Writer(path) as writer:  # the last cut was none
        assert writer.append("more") == len(lines) + 1
    path.write_bytes(whole[:-2])
    with journal.Writer(path) as writer:
        assert writer.append("again") == len(lines)
    assert [line["kind"] for line in journal.read(path)][-1] == "again"


def test_what_is_known_to_be_in_no_archive_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    lines = written(path, [("metrics", {"step": step}) for step in range(9)])
    for piece in (1, 70, path.stat().st_size, 1 << 16):
        monkeypatch.setattr(journal, "_PIECE", piece)
        assert journal.Reader(path).read(loose=True) == lines


@settings(max_examples=30, deadline=None)
@given(records=RECORDS, where=st.floats(0, 0.999), bit=st.integers(0, 7))
def test_a_flipped_bit_ends_what_is_believed(
    tmp_path_factory: pytest.TempPathFactory,
    records: list[tuple[str, dict[str, Any]]],
    where: float,
    bit: int,
) -> None:
    path = tmp_path_factory.mktemp("journal") / "a.jsonl"
    lines = written(path, records)
    data = bytearray(path.read_bytes())
    at = int(where * len(data))
    data[at] ^= 1 << bit
    path.write_bytes(bytes(data))
    before = bytes(data[:at]).count(b"\n")
    assert journal.read(path) == lines[: min(before, len(lines))]


def test_a_reader_goes_on_where_it_stopped_and_waits_for_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    reader = journal.Reader(path)
    assert reader.read() == []
    with journal.Writer(path) as writer:
        writer.append("one")
        assert [line["kind"] for line in reader.read()] == ["one"]
        writer.append("two")
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    assert reader.read() == []
    path.write_bytes(whole)
    assert [line["kind"] for line in reader.read()] == ["two"]
    assert not reader.damaged


def test_a_full_disk_takes_back_half_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    real = os.write
    with journal.Writer(path) as writer:
        writer.append("one")

        def full(fd: int, data: bytes) -> int:
            monkeypatch.setattr(os, "write", no_space)
            return real(fd, bytes(data)[:7])

        def no_space(fd: int, data: bytes) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            writer.append("two")
        monkeypatch.undo()
        writer.append("three")
    assert [line["kind"] for line in journal.read(path)] == ["one", "three"]


def test_numbers_that_are_not_json_are_refused(tmp_path: Path) -> None:
    with journal.Writer(tmp_path / "a.jsonl") as writer, pytest.raises(ValueError):
        writer.append("metrics", value=float("nan"))
    with pytest.raises(ValueError):
        files.canonical({"value": float("inf")})
