"""Logs: merged by time, followed, read from their end, and the tracebacks in them."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdet.read.views import logs
from tests.builders import Builder


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


# -- logs --------------------------------------------------------------------------------


def test_lines_carry_time_and_level_on(tmp_path: Path) -> None:
    attempt = Builder(tmp_path / "digits-7f3a").trial().attempt()
    attempt.log(
        "2026-03-01T10:00:00Z INFO begin\n"
        "2026-03-01T11:00:00Z ERROR failed\n"
        "Traceback (most recent call last):\n"
        "ValueError: no\n"
        "2026-03-01T12:00:00Z INFO end\n"
        "50 %\r100 %\r\n"
    )

    def read(**limits: str) -> list[str]:
        [source] = logs.sources(attempt.experiment.paths)
        return [line.text.split()[-1] for line in logs.read(source, **limits)]  # type: ignore[arg-type]

    assert read() == ["begin", "failed", "last):", "no", "end", "%"]
    assert read(level="WARNING") == ["failed", "last):", "no"]
    assert read(since="2026-03-01T10:30:00Z", until="2026-03-01T11:30:00Z") == [
        "failed",
        "last):",
        "no",
    ]


def test_a_followed_log_waits_for_whole_lines(tmp_path: Path) -> None:
    attempt = Builder(tmp_path / "digits-7f3a").trial().attempt()
    attempt.log("one\ntw")
    [source] = logs.sources(attempt.experiment.paths)
    assert [line.text for line in source.lines(whole=False)] == ["one"]
    attempt.log("o\n")
    assert [line.text for line in source.lines(whole=False)] == ["two"]
    assert list(source.lines(whole=True)) == []


def test_digits_that_only_look_like_a_time_are_text(tmp_path: Path) -> None:
    attempt = Builder(tmp_path / "digits-7f3a").trial().attempt()
    attempt.log("2026-03-01T10:00:00Z a\n2026-13-45 99:00:00 b\n0001-01-01 00:00:00+23:00 c\n")
    [source] = logs.sources(attempt.experiment.paths)
    assert [line.time for line in logs.read(source)] == ["2026-03-01T10:00:00.000000Z"] * 3


class Counted(io.BufferedReader):
    """Counts the bytes that are read of it."""

    total = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        Counted.total += len(data)
        return data


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> type[Counted]:
    monkeypatch.setattr(Counted, "total", 0)
    monkeypatch.setattr(logs, "_open", lambda path: Counted(io.FileIO(path)))
    return Counted


def test_the_end_of_a_huge_log_is_read_from_its_end(tmp_path: Path, counted: type[Counted]) -> None:
    attempt = Builder(tmp_path / "digits-7f3a").trial().attempt()
    attempt.log("2026-03-01T10:00:00Z WARNING begin\n")
    with attempt.paths.log(0).open("ab") as file:
        file.truncate(1 << 36)
        file.seek(1 << 36)
        file.write(b"\n2026-03-01T11:00:00Z INFO one\ntwo\n" + b"three\n" * 10_000 + b"half")
    [source] = logs.sources(attempt.experiment.paths)
    assert [line.text for line in source.tail(2, whole=True, carried=False)] == ["three", "half"]
    assert list(source.lines(whole=True)) == []
    assert [line.text for line in source.tail(2, whole=False, carried=False)] == ["three"] * 2
    assert counted.total < 400_000
    last = source.tail(1, whole=True, carried=True)
    assert [(line.text, line.time[:19], line.level) for line in last] == [
        ("half", "2026-03-01T11:00:00", "INFO")
    ]
    assert len(source.tail(10_010, whole=True, carried=True)) == 10_010
    assert counted.total < 40 * logs.LONGEST


def test_a_log_is_read_as_it_is_taken(tmp_path: Path, counted: type[Counted]) -> None:
    attempt = Builder(tmp_path / "digits-7f3a").trial().attempt()
    attempt.log("x" * 79 + "\n")
    with attempt.paths.log(0).open("ab") as file:
        file.truncate(1 << 36)
    [source] = logs.sources(attempt.experiment.paths)
    stream = logs.read(source)
    assert next(stream).text == "x" * 79
    assert counted.total <= 1 << 16
    assert len(next(stream).text) <= logs.LONGEST + (1 << 17)
    assert counted.total <= 1 << 21


@settings(max_examples=100, deadline=None)
@given(
    texts=st.lists(
        st.sampled_from(
            [
                "",
                "a" * 99,
                "2026-03-01T10:00:00Z x",
                "2026-13-01T10:00:00Z",
                "ERROR y",
                "5 %\r6 %\r",
            ]
        ),
        max_size=30,
    ),
    open_end=st.booleans(),
    count=st.integers(0, 12),
)
def test_the_last_lines_are_the_same_from_either_end(
    texts: list[str], open_end: bool, count: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "either-end.log"
    path.write_text("\n".join(texts) + ("" if open_end else "\n"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "_BLOCK", 64)
        for whole in (True, False):
            every = list(logs.LogSource(1, 1, 0, path).lines(whole))
            source = logs.LogSource(1, 1, 0, path)
            last = every[-count:] if count else []
            assert source.tail(count, whole=whole, carried=True) == last
            plain = source.tail(count, whole=whole, carried=False)
            assert [line.text for line in plain] == [line.text for line in last]


def test_the_first_traceback_of_each_rank_is_found_whole(swept: Builder) -> None:
    traces = logs.errors(swept.paths, 3, 2)
    assert [line.text for line in traces[0]] == [
        "Traceback (most recent call last):",
        '  File "model_def.py", line 7, in train_batch',
        '    raise ValueError("bad batch 2")',
        "ValueError: bad batch 2",
    ]


def test_a_chain_of_tracebacks_is_found_to_its_last_hint(tmp_path: Path) -> None:
    frames = '  File "model_def.py", line 7, in f\n    g()\n'
    head = "Traceback (most recent call last):\n"
    chain = (
        f"{head}{frames}OSError: two\nlines\n\n"
        f"During handling of the above exception, another exception occurred:\n\n"
        f"{head}{frames}RuntimeError: torch's own words\n\n"
        f"The above exception was the direct cause of the following exception:\n\n"
        f"{head}{frames}hpcdet.errors.IntegrityError: damaged\n  hint: go on from another\n"
    )
    attempt = Builder(tmp_path / "digits-7f3a").trial().attempt()
    attempt.log(f"epoch 1\n{chain}bye\n{head}{frames}ValueError: a later one\n")
    attempt.end("user_error")
    [lines] = logs.errors(attempt.experiment.paths)
    assert "".join(f"{line.text}\n" for line in lines) == chain
