"""Trials whose policy changes: at the next attempt, on all ranks alike, and with the right sums."""

from __future__ import annotations

import dataclasses
import json
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hpcdet import checkpoint
from hpcdet.guard.resume import deciding
from hpcdet.policy.changes.change_writer import ChangeWriter
from hpcdet.policy.compiled import CompiledPolicy, PolicyText, TrustedKey, UseAgreement
from hpcdet.policy.keys import key_files
from hpcdet.policy.ledger import records
from hpcdet.store.config import resolved_config
from hpcdet.store.config.resolved_config import Governance
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.folder.records import Trial
from hpcdet.store.fs import files
from tests import ranks
from tests.experiments import same_bits
from tests.guard.test_governed import DROPS, EXACT, MATRIX, UNTIL, make, policy, state_of
from tests.pytorch.test_bits_local import interrupt, signals

pytestmark = pytest.mark.xdist_group("governed")

LEE = Ed25519PrivateKey.generate()
TRUST = (TrustedKey("pi-lee", "policy", key_files.public(LEE)),)
TIGHT = ((1.0, 1.0, 1.0), (0.0, 0.0, 1.0), (0.0, 0.0, 0.5))
STORED = {"stored": "governance.run_key"}


def begun(root: Path, world: int, wanted: CompiledPolicy, **changes: Any) -> TrialPaths:
    section = {"policy": "test", "digest": wanted.digest, "run_key": STORED}
    trial = make(root, world, wanted, DROPS, governance=section, **changes)
    secret = Ed25519PrivateKey.generate().private_bytes_raw().hex()
    paths = ExperimentPaths(root)
    paths.secrets.write_text(json.dumps({STORED["stored"]: secret}))
    paths.secrets.chmod(0o600)
    return trial


def writer(root: Path) -> ChangeWriter:
    digest = json.loads((root / "policy.json").read_text())["digest"]
    return ChangeWriter(ExperimentPaths(root), Governance("test", STORED, digest=digest))


def change(root: Path, wanted: CompiledPolicy, **how: Any) -> None:
    writer(root).change(PolicyText("", wanted), "because", **how)


def checks_of(attempt: ranks.Attempt) -> list[dict[str, Any]]:
    return [one for line in attempt.lines() for one in line.get("checks", ())]


def ended(attempt: ranks.Attempt) -> str:
    verdict = attempt.verdict()
    assert verdict is not None, attempt.log()
    return verdict.verdict


def counted(state: Any) -> Any:
    """Rows of each source, as a column."""
    return np.array([[state["exposure"]["rows"][source]] for source in "abc"])


@pytest.mark.parametrize("withdrawn", [False, True])
def test_a_change_counts_from_the_next_attempt_on_with_the_same_bits_on_any_ranks(
    withdrawn: bool, tmp_path: Path
) -> None:
    """While it runs it changes nothing; then rows count by the weights they were trained with."""
    base = policy(trust=TRUST)
    changes = {
        "optimizations": {"aggregation_frequency": 2},
        "resources": {"slots_per_trial": 2, "slots_per_node": 2},
        **EXACT,
    }
    digests = []
    for name, later in (("one", 1), ("two", 2)):
        root = tmp_path / name
        trial = begun(root, 2, base, **changes)
        first = interrupt(trial, tmp_path / f"{name}.1", "train:5", signals(signal.SIGUSR2), 2)
        stopped = first.verdict()
        assert stopped is not None and stopped.batches < UNTIL, first.log()
        before = state_of(trial)[1]
        assert before["policy"] == base.digest
        if withdrawn:
            writer(root).revoke("b", "its owner asked")
        else:
            change(root, policy(TIGHT, trust=TRUST, version=2))
        attempt = ranks.run(trial, later)
        assert ended(attempt) == "done", attempt.log()
        digest, after = state_of(trial)
        digests.append(digest)
        new = np.array(MATRIX if withdrawn else TIGHT)
        if withdrawn:
            new[1] = 0
        rows = [
            np.array([state["exposure"]["rows"][s] for s in "abc"]) for state in (before, after)
        ]
        should = rows[0][:, None] * np.array(MATRIX) + (rows[1] - rows[0])[:, None] * new
        np.testing.assert_array_equal(after["E"], should)
        details = [one["detail"] for one in checks_of(attempt) if one["code"] == "G108"]
        assert details[0] == f"tighten: {'revoke' if withdrawn else 'change'} 0001"
        assert "optimizers begin anew in high" in details[1]
    same_bits(*digests)


def test_a_source_that_is_withdrawn_moves_nothing_any_more(tmp_path: Path) -> None:
    """Not even by the momentum or by gradients that it has left: only b is trained from then on."""
    trial = begun(tmp_path / "EXP", 1, policy(), until=8)
    interrupt(trial, tmp_path / "1", "train:5", signals(signal.SIGUSR2), 1, ONLY="b")
    [*_, left] = sorted(trial.checkpoints.glob("*.g1"))
    weights = checkpoint.load(left).shared["models"][0]
    writer(tmp_path / "EXP").revoke("b", "its owner asked")
    trace = tmp_path / "trace"
    attempt = ranks.run(trial, 1, TRACE=str(trace), ONLY="b")
    assert ended(attempt) == "done", attempt.log()
    steps = [*torch.load(trace, weights_only=False).values()]
    assert steps
    for step in steps:
        for name, (values, state) in step.items():
            assert torch.equal(values, weights[name]), name
            assert name[0] in "01" or not state, name


def test_what_is_loosened_without_approval_stops_the_trial(tmp_path: Path) -> None:
    base = policy(trust=TRUST)
    loose = policy(np.ones((3, 3)), trust=TRUST, version=2)
    trial = begun(tmp_path / "EXP", 1, base)
    interrupt(trial, tmp_path / "1", "train:5", signals(signal.SIGUSR2), 1)
    change(tmp_path / "EXP", loose, by=LEE)
    path = tmp_path / "EXP" / "policies" / "0001.json"
    whole = path.read_bytes()
    path.write_bytes(json.dumps({**json.loads(whole), "approvals": []}).encode())
    attempt = ranks.run(trial, 1)
    assert ended(attempt) != "done"
    assert "G108" in attempt.log() and "needs 1 approvals, and has 0" in attempt.log()
    path.write_bytes(whole)
    attempt = ranks.run(trial, 1)
    assert ended(attempt) == "done", attempt.log()
    assert state_of(trial)[1]["policy"] == loose.digest
    # and once it was trained so, the change cannot be taken away
    (tmp_path / "EXP" / "policies" / "0001.json").unlink()
    ranks.control(trial, "go_on", UNTIL + 2)
    attempt = ranks.run(trial, 1)
    assert ended(attempt) != "done" and "G108" in attempt.log()


def test_a_change_that_another_trial_has_trained_with_cannot_be_taken_away(tmp_path: Path) -> None:
    root = tmp_path / "EXP"
    trial = begun(root, 1, policy(trust=TRUST), until=2)
    change(root, policy(TIGHT, trust=TRUST, version=2))
    assert ended(ranks.run(trial, 1)) == "done"
    (root / "policies" / "0001.json").unlink()
    other = ExperimentPaths(root).trial(2)
    record = Trial.read(trial.record)
    assert record is not None
    dataclasses.replace(record, number=2).write_once(other.record)
    attempt = ranks.run(other, 1)
    verdict = attempt.verdict()
    assert verdict is not None and verdict.verdict == "norestart", attempt.log()
    assert "G108: change 0001 of the policy is gone: attempt 1 of trial 1" in verdict.error


@pytest.mark.parametrize("world", [1, 2])
def test_after_its_agreement_has_ended_a_source_is_trained_with_no_more(
    world: int, tmp_path: Path
) -> None:
    cases: dict[str, tuple[str, Literal["drop", "stop"]]] = {
        "over": ("2001-01-31", "drop"),
        "stops": ("2001-01-31", "stop"),
        "holds": ("2999-12-31", "stop"),
    }
    for name, (ends, action) in cases.items():
        wanted = policy()
        agreed = dataclasses.replace(wanted.sources[1], agreement=UseAgreement("DUA-1", ends))
        sources = (wanted.sources[0], agreed, wanted.sources[2])
        rules = dataclasses.replace(wanted.changes, revoke=action)
        wanted = dataclasses.replace(wanted, sources=sources, changes=rules)
        trial = make(tmp_path / name, world, wanted, until=2)
        attempt = ranks.run(trial, world)
        assert (ended(attempt) == "done") == (name != "stops"), attempt.log()
        assert ("G112" in attempt.log()) == (name == "stops")
        if name != "stops":
            governance = state_of(trial)[1]
            assert governance["exposure"]["rows"]["b"] > 0
            assert bool(governance["E"][1].any()) == (name == "holds")
            assert bool(governance["dropped"]) == (name == "over")
            dropped = [one for one in checks_of(attempt) if one["outcome"] == "dropped"]
            assert bool(dropped) == (name == "over")


def test_a_clock_that_is_behind_brings_no_agreement_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was recorded since then tells the day, by a change of the policy or by a ledger."""
    now = datetime.now(UTC)
    wanted = policy()
    until = UseAgreement("DUA-1", (now + timedelta(1)).date().isoformat())
    agreed = dataclasses.replace(wanted.sources[1], agreement=until)
    sources = (wanted.sources[0], agreed, wanted.sources[2])
    trial = begun(tmp_path / "EXP", 1, dataclasses.replace(wanted, sources=sources), until=2)
    with monkeypatch.context() as ahead:
        ahead.setattr(files, "now", lambda: (now + timedelta(3)).isoformat())
        writer(tmp_path / "EXP").override("G120", "three days from now")
        assert records.last_time(trial.attempt(1).ledger) == ""
    attempt = ranks.run(trial, 1)
    assert ended(attempt) == "done", attempt.log()
    assert "72 h behind what was recorded at" in attempt.log()
    assert list(state_of(trial)[1]["dropped"]) == ["b"]
    ledger = trial.attempt(1).ledger
    last = records.last_time(ledger)
    assert last == json.loads(ledger.read_bytes().splitlines()[-1])["time"]
    with ledger.open("ab") as file:
        file.write(b'{"body":')
    assert records.last_time(ledger) == last, "a writer that was killed leaves a part of a line"

    late, paths = (now + timedelta(5)).isoformat(), ExperimentPaths(tmp_path / "EXP")
    monkeypatch.setattr(records, "last_time", lambda path: late if path == ledger else "")
    heir = paths.trial(2)
    Trial(2, {}, 11, parent="1@2 batches").write_once(heir.record)
    governance = resolved_config.load(paths.config).governance
    assert governance is not None
    assert deciding._decided(heir, paths, governance).at == late, "its parent's ledger tells it"


@pytest.mark.parametrize(
    ("recorded", "day"),
    [
        ("2027-06-01T23:40:00+00:00", 1),
        ("2027-06-02T00:10:00+00:00", 2),  # by a clock that is 20 minutes ahead
        ("2027-06-02T12:00:00+14:00", 1),  # 22:00 in UTC
        ("2027-06-03T23:00:00-04:00", 4),
    ],
)
def test_no_day_is_before_one_that_was_recorded(recorded: str, day: int) -> None:
    now = datetime(2027, 6, 1, 23, 50, tzinfo=UTC)
    found = deciding._no_earlier(now, ["2027-05-01T00:00:00+00:00", recorded])
    assert found.date() == datetime(2027, 6, day, tzinfo=UTC).date()
