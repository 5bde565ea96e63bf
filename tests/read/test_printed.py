"""What the verbs that read print: byte for byte as it was recorded, and valid by their schemas."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests import RECORDED, TOP
from tests.commands import Cli
from tests.read import printed

sys.path.insert(0, str(TOP / "scripts"))

import schemas  # type: ignore[import-not-found]


@pytest.mark.parametrize("name", printed.MADE)
def test_verbs_print_what_they_printed(
    cli: Cli, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = "\n".join(
        f"$ hpcdet {' '.join(words)}\n{out}{err}"
        for words, out, err in printed.printed(cli, name, monkeypatch)
    )
    (tmp_path / f"{name}.txt").write_text(found)  # to be recorded, where a change is meant
    assert found == (RECORDED / "printed" / f"{name}.txt").read_text()


def strict(value: Any) -> Any:
    """A schema in which objects have no keys that it does not name."""
    if isinstance(value, dict):
        closed = {"additionalProperties": False} if "properties" in value else {}
        return closed | {key: strict(each) for key, each in value.items()}
    return [strict(each) for each in value] if isinstance(value, list) else value


def test_what_verbs_print_is_valid_by_their_schemas(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = set()
    for name in printed.MADE:
        cli.root = tmp_path / name
        cli.root.mkdir()
        monkeypatch.setenv("HPCDET_ROOT", str(cli.root))
        for words, out, _ in printed.printed(cli, name, monkeypatch):
            if words[-1] == "json":
                envelope = json.loads(out)
                verb = envelope["schema"].removeprefix("hpcdet.").removesuffix("/1")
                if verb not in schemas.views():
                    continue
                schema = json.loads((schemas.SCHEMAS / f"{verb}.json").read_text())
                Draft202012Validator(strict(schema)).validate(envelope)
                checked |= {verb} if envelope["items"] else set()
    assert checked == set(schemas.views())


def test_schemas_and_their_page_are_up_to_date() -> None:
    texts = schemas.generated()
    assert set(schemas.SCHEMAS.iterdir()) == {path for path in texts if path.suffix == ".json"}
    for path, text in texts.items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: make schemas"
        if path.suffix == ".json":
            Draft202012Validator.check_schema(json.loads(text))
