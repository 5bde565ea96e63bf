"""Verbs of ledgers: what was written is shown, and what was changed is named."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hpcdet.policy.compiled import LedgerRules
from hpcdet.policy.keys import key_files
from hpcdet.policy.ledger import anchored, records
from hpcdet.policy.ledger.anchored import AnchoredHead
from hpcdet.policy.ledger.records import LedgerOwner
from hpcdet.policy.ledger.writer import LedgerWriter
from hpcdet.store.config import resolved_config
from hpcdet.store.folder import home
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from tests.builders import Builder
from tests.commands import Cli, Ran
from tests.policy.test_ledger import KEY, POLICY

TIME = "2026-11-24T05:00:00.000000Z"


@pytest.fixture
def trial(cli: Cli, tmp_path: Path) -> TrialPaths:
    paths = ExperimentPaths(Builder(cli.root / "ruled-1").paths.root)
    made = paths.trial(1)
    write(made, 1, KEY, 5)
    return made


def write(trial: TrialPaths, attempt: int, key: Ed25519PrivateKey | None, steps: int) -> None:
    earlier = [one for n in range(1, attempt) if (one := records.read(n, trial.attempt(n).ledger))]
    accepts = earlier[0].head if earlier else None
    if accepts:  # the last two records are lost
        seq = accepts.seq - 2
        accepts = records.LedgerHead(1, seq, earlier[0].hashes[seq])
    of = LedgerOwner(trial.root.parent.parent.name, trial.number, attempt)
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


@pytest.mark.parametrize("by", ["the run key", "another key", "nobody"])
def test_a_ledger_is_signed_by_the_key_that_its_experiment_names(cli: Cli, by: str) -> None:
    names = {"digest": POLICY.digest, "signer": key_files.public(KEY)}
    paths = ExperimentPaths(Builder(cli.root / "ruled-1", governance=names).paths.root)
    paths.compiled_policy.write_text(POLICY.to_json())
    keys = {"the run key": KEY, "another key": Ed25519PrivateKey.generate(), "nobody": None}
    write(paths.trial(1), 1, keys[by], 5)
    ended = cli("ledger", "verify", "ruled-1", "-o", "json", code=0 if by == "the run key" else 9)
    [item] = ended.items
    assert item["ok"] == (by == "the run key")
    assert item["signed"] == ("self" if item["ok"] else "none")
    assert item["ok"] or item["first_bad"].startswith("1:0 G102: ")


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


# -- anchors ------------------------------------------------------------------------------------


def heads(trial: TrialPaths, *seqs: int, attempt: int = 1) -> bytes:
    found = records.read(attempt, trial.attempt(attempt).ledger)
    assert found is not None
    each = (AnchoredHead("ruled-1", 1, attempt, n, found.hashes[n], TIME) for n in seqs)
    return b"".join(one.to_bytes() + b"\n" for one in each)


@pytest.fixture
def worm(trial: TrialPaths, tmp_path: Path) -> Path:
    """A folder that the experiment's policy has as its anchor."""
    folder = tmp_path / "worm"
    folder.mkdir()
    anchor(trial, f"file:{folder}")
    return folder


def anchor(trial: TrialPaths, *anchors: str) -> None:
    policy = dataclasses.replace(POLICY, ledger=LedgerRules(1000, anchors))
    paths = ExperimentPaths(trial.root.parent.parent)
    paths.compiled_policy.write_text(policy.to_json())
    governance = {"policy": "p", "digest": policy.digest}
    value = {**resolved_config.load(paths.config).raw, "governance": governance}
    paths.config.write_bytes(resolved_config.dump(value))


def file_of(worm: Path, number: int = 1) -> Path:
    return anchored.path_in(worm, "ruled-1", number, os.geteuid())


def warnings(ran: Ran) -> list[str]:
    found: list[str] = json.loads(ran.out)["warnings"]
    return found


def cut(trial: TrialPaths, keep: int) -> None:
    path = trial.attempt(1).ledger
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:keep]))


def test_anchors_of_the_policy_are_read_by_themselves(
    cli: Cli,
    trial: TrialPaths,
    worm: Path,
) -> None:
    file_of(worm).write_bytes(heads(trial, 1, 8))
    ran = cli("ledger", "verify", "ruled-1", "-o", "json")
    [item] = ran.items
    assert item["ok"] and warnings(ran) == []
    assert item["anchors"] == [{"anchor": f"file:{worm}", "heads": 2, "behind": 0}]
    assert "UNANCHORED" in cli("ledger", "verify", "ruled-1/1").out


def test_trials_of_a_fork_are_compared_under_its_own_name(
    cli: Cli,
    trial: TrialPaths,
    worm: Path,
) -> None:
    """The first had ended where it came from; the second goes on here, and was one there, too."""
    fork = ExperimentPaths(Builder(cli.root / "fork-2").paths.root)
    home.settle(fork)
    shutil.copytree(trial.root, fork.trial(1).root)
    write(fork.trial(2), 1, KEY, 4)
    anchor(fork.trial(1), f"file:{worm}")
    file_of(worm).write_bytes(heads(trial, 1, 8))
    theirs = heads(trial, 2).replace(b'"trial":1', b'"trial":2')
    file_of(worm, 2).write_bytes(theirs)
    own = heads(fork.trial(2), 7)
    own = own.replace(b'"ruled-1","', b'"fork-2","').replace(b'"trial":1', b'"trial":2')
    anchored.path_in(worm, "fork-2", 2, os.geteuid()).write_bytes(own)
    items = cli("ledger", "verify", "fork-2", "-o", "json").items
    assert [(one["trial"], one["anchors"][0]["heads"]) for one in items] == [(1, 2), (2, 1)]
    cut(fork.trial(2), 6)
    [item] = cli("ledger", "verify", "fork-2/2", "-o", "json", code=9).items
    assert item["first_bad"].startswith("1:7 G105: it is not there any more")
    cut(fork.trial(1), 6)
    [item] = cli("ledger", "verify", "fork-2/1", "-o", "json", code=9).items
    assert item["first_bad"].startswith("1:8 G105: it is not there any more")


def test_a_ledger_that_was_cut_and_one_that_was_written_anew_with_its_key_are_found(
    cli: Cli,
    trial: TrialPaths,
    worm: Path,
) -> None:
    file_of(worm).write_bytes(heads(trial, 1, 8))
    cut(trial, 6)
    [item] = cli("ledger", "verify", "ruled-1", "-o", "json", code=9).items
    assert item["first_bad"].startswith(
        "1:8 G105: it is not there any more: the ledger ends with 6"
    )
    assert not item["ok"]
    path = trial.attempt(1).ledger
    path.unlink()
    write(trial, 1, KEY, 5)
    err = " ".join(cli("ledger", "verify", "ruled-1", code=9).err.split())
    assert f"{path}: G105: record 1: it was written anew" in err
    assert f"file:{worm} holds it since {TIME}" in err and "backup" in err
    file_of(worm).unlink()
    assert cli("ledger", "verify", "ruled-1", "-o", "json").items[0]["signed"] == "self"


def test_a_trial_or_a_ledger_that_is_gone_is_found(
    cli: Cli,
    trial: TrialPaths,
    worm: Path,
) -> None:
    line = heads(trial, 3)
    file_of(worm, 7).write_bytes(line.replace(b'"trial":1', b'"trial":7'))
    items = cli("ledger", "verify", "ruled-1", "-o", "json", code=9).items
    assert [(one["trial"], one["ok"]) for one in items] == [(1, True), (7, False)]
    assert "attempt 1 has no ledger" in items[1]["first_bad"]
    assert cli("ledger", "verify", "ruled-1/1", "-o", "json").items[0]["ok"]
    file_of(worm, 7).unlink()
    file_of(worm).write_bytes(line)
    trial.attempt(1).ledger.unlink()
    assert "has no ledger" in cli("ledger", "verify", "ruled-1", code=9).err


def test_what_an_anchor_lacks_and_what_cannot_be_read_is_told(
    cli: Cli,
    trial: TrialPaths,
    worm: Path,
) -> None:
    [said] = warnings(cli("ledger", "verify", "ruled-1", "-o", "json"))
    assert said == f"trial 1: file:{worm} holds nothing of attempt 1, sealed up to 8"
    file_of(worm).write_bytes(heads(trial, 4))
    ran = cli("ledger", "verify", "ruled-1", "-o", "json")
    assert "holds nothing behind record 4 of attempt 1" in warnings(ran)[0]
    assert ran.items[0]["anchors"][0]["behind"] == 4
    anchor(trial, f"file:{worm}/gone", "syslog", "command:rekor-cli upload")
    first, second = warnings(cli("ledger", "verify", "ruled-1", "-o", "json"))
    assert first.startswith(f"file:{worm}/gone cannot be read: ")
    assert second == "syslog, command cannot be read back: give lines of its log by --anchored"
    file_of(worm).unlink()
    file_of(worm).mkdir()
    anchor(trial, f"file:{worm}")
    [said] = warnings(cli("ledger", "verify", "ruled-1", "-o", "json"))
    assert "a folder instead of a file" in said


def test_lines_of_a_log_are_compared(
    cli: Cli,
    trial: TrialPaths,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    anchor(trial, "syslog")
    log, exported = tmp_path / "syslog", tmp_path / "journal"
    lines = [
        b"Nov 24 n01 hpcdet[9]: " + one for one in heads(trial, 2, 8).splitlines(keepends=True)
    ]
    log.write_bytes(b"Nov 24 n01 sshd[3]: session opened\n" + b"".join(lines))
    text = heads(trial, 5).decode().rstrip()
    exported.write_text(json.dumps({"_UID": "1000", "MESSAGE": text}) + "\n")
    argv = ("ledger", "verify", "ruled-1", "-o", "json", "--anchored", str(log))
    ran = cli(*argv, "--anchored", str(exported))
    assert ran.items[0]["anchors"] == [
        {"anchor": str(log), "heads": 2, "behind": 0},
        {"anchor": str(exported), "heads": 1, "behind": 3},
    ]
    cut(trial, 3)
    assert cli(*argv, code=9).items[0]["first_bad"].startswith("1:8 G105: ")
    monkeypatch.setattr("sys.stdin", exported.open())
    err = cli("ledger", "verify", "ruled-1", "--anchored", "-", code=9).err
    assert "record 5: it is not there any more" in " ".join(err.split())
    assert "No such file" in cli("ledger", "verify", "ruled-1", "--anchored", "none", code=2).err
