"""The command line run in this process: its exit code, and what it printed."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hpcdet.cli import main


@dataclass(frozen=True)
class Ran:
    """``out`` and ``err`` are what the command wrote to standard output and error."""

    code: int
    out: str
    err: str

    @property
    def items(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = json.loads(self.out)["items"]
        return items


class Cli:
    """Runs commands with ``root`` as the folder of experiments; nobody is at a terminal."""

    def __init__(self, root: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self.capture = capture

    def __call__(self, *argv: object, code: int = 0) -> Ran:
        """Run ``hpcdet ARGV``, which must end with ``code``."""
        self.capture.readouterr()
        ended = main.run([str(word) for word in argv])
        out, err = self.capture.readouterr()
        assert ended == code, f"hpcdet {argv} ended with {ended}, not {code}:\n{out}\n{err}"
        return Ran(ended, out, err)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """A command line for which nothing of this machine's user, site or terminal matters."""
    root = tmp_path / "root"
    root.mkdir(mode=0o700)
    for name in ("NO_COLOR", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "HPCDET_ROOT": root,
        "HPCDET_LOCAL_STATE": tmp_path / "local-state",
        "XDG_CONFIG_HOME": tmp_path / "no-config",
        "XDG_CACHE_HOME": tmp_path / "cache",
        "COLUMNS": 80,
    }.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    return Cli(root, capsys)
