"""What the verbs that read print: byte for byte as it was recorded, and valid by their schemas."""

from __future__ import annotations

import json
import sys
from pathlib import Path

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


ACTS = {
    "going": (
        "cancel {id} -n",
        "pause {id} -n",
        "resume {id}/1 -n",
        "hold {id} -n",
        "release {id} -n",
        "set {id} max_concurrent=3 -n",
        "tag {id} --add paper -n",
        "note {id} draft -n",
        "lineage {id}",
    ),
    "ended": (
        "compare {id}/1 {id}/2",
        "diff {id}/1 {id}/2",
        "retry {id} -n",
        "ckpt pin {id}/1 300",
        "ckpt unpin {id}/1 300",
        "ckpt rm {id}/1 -n",
        "move {id} {away} -n",
        "archive {id} -n",
        "rm {id} -n",
        "doctor",
        "site check local",
        "submit {config} -n --offline",
    ),
}
"""Commands that act, on two of the experiments."""

ELSEWHERE = {
    *("fork", "hp", "usage", "ckpt.digest", "ckpt.verify", "site.lint"),
    *("policy.report", "policy.impact", "policy.export", "policy.reveal"),
    *("policy.keygen", "policy.sign", "policy.change", "policy.override"),
    *("data.manifest", "data.verify", "data.chain.add", "data.chain.sign", "data.chain.show"),
    *("ledger.verify", "ledger.show", "ledger.query"),
}
ELSEWHERE |= {f"policy.{verb}" for verb in ("check", "compile", "diff", "ls", "show")}
ELSEWHERE |= {
    f"{kind}.{verb}"
    for kind in ("notebook", "tensorboard", "shell", "run")
    for verb in ("ls", "start", "stop")
}
ELSEWHERE |= {"notebook.url", "tensorboard.url"}
_OF_MODELS = "ls versions show best add alias unalias label note archive rm verify"
ELSEWHERE |= {f"registry.{verb}" for verb in _OF_MODELS.split()}
ELSEWHERE |= {"export", "import.determined", "reproduce", "ckpt.archive"}
"""What needs a search that ran, a checkpoint, a policy or a job: tests of these run them."""


def test_what_verbs_print_is_valid_by_their_schemas(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("init", tmp_path / "digits")
    names = {"id": printed.ID, "away": tmp_path / "away", "config": tmp_path / "digits/random.yaml"}
    for name in printed.MADE:
        cli.root = tmp_path / name
        cli.root.mkdir()
        monkeypatch.setenv("HPCDET_ROOT", str(cli.root))
        for _ in printed.printed(cli, name, monkeypatch):  # which checks what it runs
            pass
        for act in ACTS.get(name, ()):
            cli(*act.format(**names).split(), "-o", "json")
    assert cli.checked | ELSEWHERE == set(schemas.views())


def test_schemas_and_their_page_are_up_to_date() -> None:
    texts = schemas.generated()
    assert set(schemas.SCHEMAS.iterdir()) == {path for path in texts if path.suffix == ".json"}
    for path, text in texts.items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: make schemas"
        if path.suffix == ".json":
            Draft202012Validator.check_schema(json.loads(text))
