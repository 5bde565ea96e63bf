"""Verbs of ledgers: what was written is shown, and what was changed is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hpcdet.policy.ledger import records
from hpcdet.policy.ledger.records import LedgerOwner
from hpcdet.policy.ledger.writer import LedgerWriter
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from tests.builders import Builder
from tests.commands import Cli
from tests.policy.test_ledger import KEY, POLICY


@pytest.fixture
def trial(cli: Cli, tmp_path: Path) -> TrialPaths:
    paths = ExperimentPaths(Builder(cli.root / "ruled-1").paths.root)
    made = paths.trial(1)
    write(made, 1, KEY, 5)
    return made


def write(trial: TrialPaths, attempt: int, key: Ed25519PrivateKey, steps: int) -> None:
    earlier = [one for n in range(1, attempt) if (one := records.read(n, trial.attempt(n).ledger))]
    accepts = earlier[0].head if earlier else None
    if accepts:  # the last two records are lost
        seq = accepts.seq - 2
        accepts = records.LedgerHead(1, seq, earlier[0].hashes[seq])
    of = LedgerOwner("ruled-1", trial.number, attempt)
    path = trial.attempt(attempt).ledger
    with LedgerWriter(path, of, earlier=earlier, accepts=accepts, key=key) as writer:
        writer.policy(0, POLICY)
        for step in range(steps):
            counts = {"a": 2, "b": 1}
            writer.append("step_batch", step, policy_digest=POLICY.digest, counts=counts)
        writer.close(steps)


def test_ledgers_are_verified(cli: Cli, trial: TrialPaths) -> None:
    [item] = cli("ledger", "verify", "ruled-1", "-o", "json").items
    assert (item["trial"], item["records"], item["ok"], item["first_bad"]) == (1, 9, True, "")
    assert (item["signed"], item["unsealed"], item["rollbacks"]) == ("self", 0, [])
    write(trial, 2, KEY, 3)
    [item] = cli("ledger", "verify", trial.root, "-o", "json").items
    assert item["head"].startswith("2:")
    assert item["rollbacks"] == [[1, 7, 8]]


def test_a_changed_ledger_is_named_with_its_record(cli: Cli, trial: TrialPaths) -> None:
    path = trial.attempt(1).ledger
    path.write_bytes(path.read_bytes().replace(b'"b":1', b'"b":7', 1))
    ended = cli("ledger", "verify", "ruled-1", "-o", "json", code=9)
    assert ended.items[0]["first_bad"].startswith("1:2 G104: ")
    assert not ended.items[0]["ok"]
    err = cli("ledger", "verify", "ruled-1", code=9).err
    assert f"{path}: G104: record 2: it has not the hash of what it holds" in err
    assert "G104: record 2" in cli("ledger", "query", "ruled-1", "--layer", "head", code=9).err
    assert len(cli("ledger", "show", "ruled-1", "-o", "json").items) == 2


def test_records_are_shown_and_those_that_were_lost_marked(cli: Cli, trial: TrialPaths) -> None:
    write(trial, 2, KEY, 3)
    items = cli("ledger", "show", "ruled-1/1", "-o", "json").items
    assert [one["counts"] for one in items if one["attempt"] == 1] == [True] * 7 + [False] * 2
    [lost] = cli("ledger", "show", "ruled-1", "--type", "rollback", "-o", "json").items
    assert lost["body"] == {"lost": [[1, 7, 8]]}


def test_a_layer_is_asked_what_it_may_have_learned_from(cli: Cli, trial: TrialPaths) -> None:
    items = cli("ledger", "query", "ruled-1", "--layer", "head", "-o", "json").items
    assert [(one["source"], one["examples"], one["weight"]) for one in items] == [
        ("a", 10, 10.0),
        ("b", 5, 1.5),
    ]
    [only] = cli("ledger", "query", "ruled-1", "--layer", "trunk", "-o", "json").items
    assert (only["source"], only["examples"]) == ("a", 10)
    err = cli("ledger", "query", "ruled-1", "--layer", "nose", code=2).err
    assert "its layers are head, trunk" in err
    assert "no trial has a ledger" in cli("ledger", "verify", bare(cli), code=3).err
    assert trial.attempt(1).ledger.stat().st_mode & 0o77 == 0


def bare(cli: Cli) -> str:
    return Builder(cli.root / "bare-2").paths.id
