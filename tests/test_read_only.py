"""Experiments on a folder that is mounted read-only: they can be read, and nothing else."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders import sweep
from tests.commands import Cli

TOP = Path(__file__).resolve().parent.parent


@pytest.fixture
def sealed(cli: Cli) -> Iterator[str]:
    """An experiment that is still live, in a root that nobody can write any more, root included."""
    sweep(cli.root / "digits-7f3a", ended=False)
    _mount("--bind", str(cli.root), str(cli.root))
    try:
        _mount("-o", "remount,ro,bind", str(cli.root))
        yield "digits-7f3a"
    finally:
        subprocess.run(["umount", "--lazy", str(cli.root)], check=True)


def _mount(*words: str) -> None:
    done = subprocess.run(["mount", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"nothing can be mounted read-only here: {done.stderr.strip()}")


def test_what_only_reads_works(cli: Cli, sealed: str, tmp_path: Path) -> None:
    assert cli("status", sealed, "-o", "json").items[0]["id"] == sealed
    assert cli("metrics", sealed, "-o", "json").items
    cli("report", sealed, "-o", tmp_path / "report.html")
    assert sealed in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    "argv",
    [
        ["report", "digits-7f3a"],
        ["index", "rebuild", "digits-7f3a"],
        ["cancel", "digits-7f3a", "-y"],
        ["submit", TOP / "examples" / "digits" / "single.yaml", "--site", "local", "--no-test"],
    ],
    ids=lambda argv: argv[0],
)
def test_what_writes_says_where_and_why(cli: Cli, sealed: str, argv: list[str | Path]) -> None:
    err = cli(*argv, code=5).err
    assert "Read-only file system" in err
    assert str(cli.root) in err
