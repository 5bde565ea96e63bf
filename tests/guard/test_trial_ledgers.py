"""Trials under a policy write ledgers, which their checkpoints name, and a crash is in them."""

from __future__ import annotations

import errno
import itertools
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hpcdet import checkpoint
from hpcdet.checkpoint import CheckpointFailed
from hpcdet.checkpoint.format import manifest as manifests
from hpcdet.guard.accounts.checkpoint_records import state_root
from hpcdet.guard.accounts.trial_ledger import TrialLedger
from hpcdet.policy.compiled import CompiledPolicy
from hpcdet.policy.keys.run_keys import RunKey
from hpcdet.policy.ledger import records, seals
from hpcdet.policy.ledger.attested import digest_of
from hpcdet.policy.ledger.records import AttemptLedger, LedgerHead, LedgerOwner
from hpcdet.policy.ledger.verify import LedgerExposure, VerifiedLedger, verify
from hpcdet.process.location import AttemptLocation
from hpcdet.store.folder.layout import TrialPaths
from tests import ranks
from tests.experiments import same_bits
from tests.guard.test_governed import BATCH, make, policy, state_of
from tests.guard.test_state import Trial
from tests.pytorch.test_bits_local import interrupt
from tests.ranks import Attempt

pytestmark = pytest.mark.xdist_group("governed")

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key().public_bytes_raw().hex()


def ledgers(trial: TrialPaths) -> list[AttemptLedger]:
    read = [records.read(one.number, one.ledger) for one in trial.attempts()]
    return [one for one in read if one is not None]


def sound(trial: TrialPaths, **how: Any) -> VerifiedLedger:
    found = verify(ledgers(trial), trial=trial.number, **how)
    assert found.bad is None, found.bad
    return found


def kill_behind(trial: TrialPaths, step: int) -> Callable[[Attempt], None]:
    """SIGKILL for all ranks, when the checkpoint of a step is there."""

    def act(attempt: Attempt) -> None:
        manifest = trial.checkpoint(step, attempt.paths.number) / "MANIFEST.json"
        attempt.wait_for(manifest.exists)
        attempt.kill()

    return act


def types(ledger: AttemptLedger) -> Counter[str]:
    return Counter(one.type for one in ledger.records)


@pytest.mark.parametrize("world", [1, 2])
def test_a_killed_trial_ends_with_the_bits_and_its_ledger_says_what_was_lost(
    world: int, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {"until": 17, "min_validation_period": {"batches": 5}}
    changes |= {"reproducibility": {"elastic": "exact", "virtual_ranks": 2}}
    once, often = (make(tmp_path / name, world, policy(), **changes) for name in ("once", "often"))
    attempt = ranks.run(once, world)
    assert attempt.verdict() is not None, attempt.log()
    interrupt(often, tmp_path / "1", "train:13", kill_behind(often, 10), world)
    attempt = ranks.run(often, world)
    assert attempt.verdict() is not None, attempt.log()
    same_bits(state_of(often)[0], state_of(once)[0])

    calm, killed = sound(once), sound(often)
    assert calm.rollbacks == ()
    [(number, first, last)] = killed.rollbacks
    lost = killed.ledgers[0].records[first : last + 1]
    assert number == 1 and [one.type for one in lost] == ["step_batch"]
    assert lost[0].body["steps"] == [10, 11]  # the rest of what was lost is in no record
    [resume] = [one for one in killed.ledgers[1].records if one.type == "resume"]
    assert resume.body["checkpoint"] == "00000010.g1" and resume.body["cut"] == 1
    assert types(killed.ledgers[0])["close"] == 0 and types(killed.ledgers[1])["close"] == 1

    for trial, found in ((once, calm), (often, killed)):
        state = state_of(trial)[1]
        summed = LedgerExposure.of(found.counting())
        [units] = summed.units.values()
        assert dict(units) == state["exposure"]["rows"]
        matrix = [[summed.matrix()[s][layer] for layer in ("low", "high", "head")] for s in "abc"]
        np.testing.assert_array_equal(matrix, state["E"])
        steps = [one.body["steps"] for one in found.counting() if one.type == "step_batch"]
        assert steps[0][0] == 0 and steps[-1][1] == 17
        assert all(one[1] == other[0] for one, other in itertools.pairwise(steps))


def test_every_checkpoint_names_its_record_and_its_root(tmp_path: Path) -> None:
    trial = make(tmp_path / "EXP", 1, policy(), until=9)
    assert ranks.run(trial, 1).verdict() is not None
    [ledger] = ledgers(trial)
    there = sorted(path for path in trial.checkpoints.iterdir() if path.name[0] != ".")
    assert there
    for folder in there:
        loaded = checkpoint.load(folder)
        said = loaded.manifest.meta["governance"]
        head = LedgerHead(**said["ledger"])
        record = ledger.records[head.seq]
        assert ledger.hashes[head.seq] == head.hash
        assert (record.type, record.step, record.body["name"]) == (
            "checkpoint",
            loaded.manifest.step,
            folder.name,
        )
        assert said["root"] == record.body["root"] == state_root(loaded.shared["governance"])
    found = types(ledger)
    assert {"open", "policy", "resume", "source_admit", "audit", "eval", "close"} <= found.keys()
    nulls = Counter[str]()
    for one in ledger.records:
        if one.type == "step_batch":
            nulls.update(one.body["nulls"])
    # the last batch of the first epoch has two samples, none of which "low" may learn from
    assert nulls == {"low": 1}


def test_a_planned_end_is_no_rollback(tmp_path: Path) -> None:
    trial = make(tmp_path / "EXP", 1, policy(), until=9)
    first = ranks.run(trial, 1, LEAVE="train:5")
    verdict = first.verdict()
    assert verdict is not None and verdict.verdict == "resume", first.log()
    attempt = ranks.run(trial, 1)
    verdict = attempt.verdict()
    assert verdict is not None and verdict.verdict == "done", attempt.log()
    found = sound(trial)
    assert len(found.ledgers) == 2 and found.rollbacks == ()
    [resume] = [one for one in found.ledgers[1].records if one.type == "resume"]
    assert resume.body["cut"] is None
    assert found.path[0] == (1, len(found.ledgers[0].records))


def test_a_run_key_signs_all_of_it(tmp_path: Path) -> None:
    key = tmp_path / "run.key"
    key.write_text(KEY.private_bytes_raw().hex())
    key.chmod(0o600)
    wanted = policy()
    reference = {"policy": "test", "digest": wanted.digest, "run_key": {"file": str(key)}}
    trial = make(tmp_path / "EXP", 1, wanted, until=5, governance=reference)
    attempt = ranks.run(trial, 1)
    verdict = attempt.verdict()
    assert verdict is not None and verdict.verdict == "done", attempt.log()
    found = sound(trial, trust=[PUBLIC])
    assert (found.signed, found.unsealed) == ("trusted", 0)
    manifest = manifests.read(trial.checkpoints / verdict.checkpoint)
    said = manifest.meta["governance"]
    of = LedgerOwner("EXP", 1, 1)
    head = LedgerHead(**said["ledger"])
    digest = manifest.digest
    made = seals.SealedCheckpoint(of, manifest.name, digest, said["root"], digest_of(said), head)
    seals.verify_checkpoint(made, said["seal"], PUBLIC)


# -- the ledger alone ---------------------------------------------------------------------------


def begun(
    folder: Path,
    key: RunKey | None = None,
    wanted: CompiledPolicy | None = None,
    place: AttemptLocation | None = None,
) -> tuple[TrialLedger, Trial]:
    trial = Trial(wanted)
    made = TrialLedger(trial.guard, place or AttemptLocation.of(folder, 1, 1), (), key)
    made.begin(0, 0, accepts=None, parent=None, changes=(0, ""))
    return made, trial


def steps(ledger: TrialLedger, trial: Trial, many: int, begin: int = 0) -> None:
    trial.train(many)
    ledger.stepped(begin + many, trial.records)


def test_a_full_disk_keeps_records_waiting_and_no_checkpoint_is_made_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, trial = begun(tmp_path / "EXP")
    real = os.write

    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    trial.train(3)
    ledger.stepped(3, trial.records)
    summary: dict[str, Any] = {}
    attest = ledger.checkpointed("00000003.g1", "sha256:0", summary)
    assert summary["ledger"] is None
    with pytest.raises(CheckpointFailed, match="ledger"):
        attest("00", {"governance": summary})
    monkeypatch.setattr(os, "write", real)
    again: dict[str, Any] = {}
    attest = ledger.checkpointed("00000003.g1", "sha256:0", again)
    assert attest("00", {"governance": again})["governance"]["ledger"] == again["ledger"]
    ledger.close()
    found = records.read(1, tmp_path / "EXP/trials/0001/attempts/1/ledger.jsonl")
    assert found is not None and verify([found]).bad is None
    counted = [one.body["counts"] for one in found.records if one.type == "step_batch"]
    assert counted == [trial.guard.exposure.encode()["rows"]]


def test_skipped_steps_and_layers_without_gradient_are_counted(tmp_path: Path) -> None:
    ledger, trial = begun(tmp_path / "EXP")
    trial.train(2)
    trial.guard.optimizers.nulls.update({"low": 2, "high": 1})
    ledger.skipped(1)
    ledger.stepped(2, trial.records)
    ledger.close()
    found = records.read(1, tmp_path / "EXP/trials/0001/attempts/1/ledger.jsonl")
    assert found is not None
    [body] = [one.body for one in found.records if one.type == "step_batch"]
    assert body["nulls"] == {"high": 1, "low": 2} and body["skipped"] == [1]


def test_few_records_say_many_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    ledger, trial = begun(tmp_path / "EXP")
    trial.state.start(trial.parameters)
    for step in range(20_000):
        clock[0] += 0.5
        ledger.stepped(step + 1, step + 1)
    ledger.close()
    found = records.read(1, tmp_path / "EXP/trials/0001/attempts/1/ledger.jsonl")
    assert found is not None
    many = types(found)["step_batch"]
    assert 100 < many < 500  # 10,000 s of training
    assert trial.guard.exposure.encode()["rows"] == {}


def test_numbers_are_told_by_their_bits() -> None:
    state = {"E": np.array([[0.1, 2.0]]), "n": 3, "w": [0.1], "t": ("a", None, True)}
    same = {"t": ["a", None, True], "w": [0.1], "n": 3, "E": torch.tensor([[0.1, 2.0]]).double()}
    assert state_root(state) != state_root(same)  # 0.1 of float32 is another number
    same["E"] = np.array([[0.1, 2.0]])
    assert state_root(state) == state_root(same)
    assert state_root({**state, "w": [np.nextafter(0.1, 1)]}) != state_root(state)
    assert BATCH == 12
