"""``hpcdet policy reveal``: the key of twins, when nobody can train under it any more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpcdet.policy.memorization import twin_keys
from hpcdet.store.config import resolved_config
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Closed, Revealed
from hpcdet.store.fs import files
from tests.commands import Cli

KEY = "0123456789abcdef"


def experiment(root: Path, name: str = "twins-1111", **governance: Any) -> ExperimentPaths:
    paths = ExperimentPaths(root / name)
    files.make_folder(paths.root)
    named = {"policy": "p", "digest": "sha256:00", "twin_key": {"stored": "governance.twin_key"}}
    config = {"entrypoint": "m:M", "governance": {**named, **governance}}
    paths.config.write_bytes(resolved_config.dump(config))
    files.write_once(paths.secrets, json.dumps({"governance.twin_key": KEY}).encode())
    return paths


def test_the_key_is_shown_when_the_experiment_has_ended(cli: Cli) -> None:
    paths = experiment(cli.root, commitment=twin_keys.commitment(KEY.encode()))
    early = cli("policy", "reveal", "twins-1111", code=8)
    assert "knows which records are withheld" in early.err and KEY not in early.err + early.out
    Closed("COMPLETED").write_once(paths.closed)
    [item] = json.loads(cli("policy", "reveal", "twins-1111", "-o", "json").out)["items"]
    assert cli.checked == {"policy.reveal"}
    assert item["key"] == KEY and twin_keys.reveals(item["key"].encode(), item["commitment"])
    assert KEY in cli("policy", "reveal", "twins-1111").out
    record = Revealed.read(paths.revealed)
    assert record is not None and record.of == "twins-1111" and record.at


def test_forks_that_still_train_keep_it_secret_and_end_with_it(cli: Cli) -> None:
    committed = twin_keys.commitment(KEY.encode())
    paths = experiment(cli.root, commitment=committed)
    fork = experiment(cli.root, "twins-2222", commitment=committed)
    stranger = experiment(cli.root, "other-3333", commitment="sha256:11")
    Closed("COMPLETED").write_once(paths.closed)
    early = cli("policy", "reveal", "twins-1111", code=8)
    assert "twins-2222 has the same key" in early.err and KEY not in early.err + early.out
    assert not paths.revealed.exists() and not fork.revealed.exists()
    Closed("CANCELED").write_once(fork.closed)
    assert KEY in cli("policy", "reveal", "twins-1111").out
    assert Revealed.read(fork.revealed) == Revealed.read(paths.revealed) is not None
    assert not stranger.revealed.exists()


@pytest.mark.parametrize(
    ("governance", "code", "says"),
    [
        ({}, 3, "has neither twins nor canaries"),
        ({"commitment": twin_keys.commitment(b"another key of 16")}, 9, "not the one that was"),
        ({"commitment": "sha256:00", "twin_key": {"env": "NOT_THERE"}}, 4, "NOT_THERE is not set"),
    ],
)
def test_what_cannot_be_shown_is_said(
    cli: Cli, governance: dict[str, Any], code: int, says: str
) -> None:
    paths = experiment(cli.root, **governance)
    Closed("COMPLETED").write_once(paths.closed)
    ran = cli("policy", "reveal", "twins-1111", code=code)
    assert says in ran.err and KEY not in ran.err + ran.out
