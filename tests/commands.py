"""The command line run in this process: its exit code, and what it printed."""

from __future__ import annotations

import functools
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import hpcdet.read
from hpcdet.cli import main

SCHEMAS = Path(hpcdet.read.__file__).parent / "schemas"


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


def strict(value: Any) -> Any:
    """A schema in which objects have no keys that it does not name."""
    if isinstance(value, dict):
        closed = {"additionalProperties": False} if "properties" in value else {}
        return closed | {key: strict(each) for key, each in value.items()}
    return [strict(each) for each in value] if isinstance(value, list) else value


@functools.cache
def validator(verb: str) -> Draft202012Validator | None:
    """What checks the output of a verb; None for one without a schema."""
    file = SCHEMAS / f"{verb}.json"
    return Draft202012Validator(strict(json.loads(file.read_text()))) if file.exists() else None


class Cli:
    """Runs commands with ``root`` as the folder of experiments; nobody is at a terminal.

    What they print as JSON is checked by their schemas; ``checked`` are the verbs whose items were.
    """

    def __init__(self, root: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self.capture = capture
        self.checked: set[str] = set()

    def __call__(self, *argv: object, code: int = 0) -> Ran:
        """Run ``hpcdet ARGV``, which must end with ``code``."""
        self.capture.readouterr()
        ended = main.run([str(word) for word in argv])
        out, err = self.capture.readouterr()
        assert ended == code, f"hpcdet {argv} ended with {ended}, not {code}:\n{out}\n{err}"
        at = 0
        while out.startswith('{\n  "schema"', at) and "--fields" not in argv:
            envelope, end = json.JSONDecoder().raw_decode(out, at)
            self._check(envelope)
            at = end + 1
        return Ran(ended, out, err)

    def _check(self, envelope: dict[str, Any]) -> None:
        verb = envelope["schema"].removeprefix("hpcdet.").removesuffix("/1")
        if (found := validator(verb)) is not None:
            found.validate(envelope)
            self.checked |= {verb} if envelope["items"] else set()


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
