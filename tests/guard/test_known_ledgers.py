"""A checkpoint that is not what its ledgers say stops the trial, each change by its own code."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hpcdet import checkpoint
from hpcdet.checkpoint import LoadedState
from hpcdet.guard.accounts.known_ledgers import known_by_ledgers, undone
from hpcdet.policy.codes import GovernanceBroken
from hpcdet.policy.compiled import CompiledPolicy, LedgerRules
from hpcdet.policy.ledger import records
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.fs import sealed_json
from tests import ranks
from tests.experiments import same_bits
from tests.guard.test_governed import MODEL, make, policy, state_of
from tests.guard.test_trial_ledgers import KEY, PUBLIC, kill_behind, ledgers, sound
from tests.pytorch.test_bits_local import interrupt

pytestmark = pytest.mark.xdist_group("governed")

OTHER = Ed25519PrivateKey.generate()


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> TrialPaths:
    """A signed trial that was killed three steps behind its checkpoint of step 8."""
    return signed_and_killed(tmp_path_factory.mktemp("killed"), policy())


def signed_and_killed(folder: Path, wanted: CompiledPolicy) -> TrialPaths:
    key = folder / "run.key"
    key.write_text(KEY.private_bytes_raw().hex())
    key.chmod(0o600)
    reference = {"policy": "test", "digest": wanted.digest, "run_key": {"file": str(key)}}
    trial = make(folder / "EXP", 1, wanted, until=12, governance=reference)
    interrupt(trial, folder / "1", "train:11", kill_behind(trial, 8), 1)
    return trial


@pytest.fixture
def trial(killed: TrialPaths, tmp_path: Path) -> TrialPaths:
    """A copy of it, to be tampered with."""
    shutil.copytree(killed.root.parent.parent, tmp_path / "EXP", symlinks=True)
    return ExperimentPaths(tmp_path / "EXP").trial(1)


def newest(trial: TrialPaths) -> LoadedState:
    [*_, last] = sorted(path for path in trial.checkpoints.glob("*.g*") if path.name[0] != ".")
    return checkpoint.load(last)


def verified(trial: TrialPaths, *trust: str) -> list[Any]:
    loaded = newest(trial)
    state = loaded.shared["governance"]
    there = ledgers(trial)
    found = known_by_ledgers(loaded.manifest, loaded.folder, state, there, trust, trial=1)
    return [*found, undone(loaded.manifest, there)]


def refusal(trial: TrialPaths, *trust: str) -> str:
    with pytest.raises(GovernanceBroken) as found:
        verified(trial, *trust)
    return found.value.check


# -- tampers ----------------------------------------------------------------------------------


def lines(trial: TrialPaths, change: Callable[[list[bytes]], Any]) -> None:
    path = trial.attempt(1).ledger
    found = path.read_bytes().splitlines(keepends=True)
    change(found)
    path.write_bytes(b"".join(found))


def rewritten(trial: TrialPaths, change: Callable[[dict[str, Any]], Any]) -> None:
    """Chain the ledger again with other records, without any signature."""
    path = trial.attempt(1).ledger
    read = records.read(1, path)
    assert read is not None
    prev, made = "", list[bytes]()
    for one in (one for one in read.records if one.type != "seal"):
        plain = dataclasses.asdict(one)
        change(plain)
        line, prev = records.line(
            dataclasses.replace(one, body=plain["body"], seq=len(made), prev=prev)
        )
        made.append(line)
    path.write_bytes(b"".join(made))


def said(trial: TrialPaths, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change what the newest manifest says of governance, and seal it again."""
    path = newest(trial).folder / "MANIFEST.json"
    raw = json.loads(path.read_text())
    change(raw["meta"]["governance"])
    path.write_bytes(sealed_json.text(sealed_json.sealed(raw)))


def resaved(trial: TrialPaths, change: Callable[[dict[str, Any]], Any]) -> None:
    """Save the newest checkpoint again with another governance state."""
    loaded = newest(trial)
    change(loaded.shared["governance"])
    shutil.rmtree(loaded.folder)
    checkpoint.save(loaded.folder, loaded.shared, loaded.private, meta=loaded.manifest.meta)


def weights(trial: TrialPaths) -> None:
    loaded = newest(trial)
    loaded.shared["models"][0]["6.bias"] += 1
    shutil.rmtree(loaded.folder)
    checkpoint.save(loaded.folder, loaded.shared, loaded.private, meta=loaded.manifest.meta)


def flip(found: list[bytes]) -> None:
    place = next(n for n, one in enumerate(found) if b'"step_batch"' in one)
    found[place] = found[place].replace(b'"dropped":0', b'"dropped":1')


def half(found: list[bytes]) -> None:
    found[8:] = [found[8][: len(found[8]) // 2]]


def one_more(state: dict[str, Any]) -> None:
    state["exposure"]["rows"]["a"] += 1


def other_root(one: dict[str, Any]) -> None:
    if one["type"] == "checkpoint":
        one["body"]["root"] = "sha256:11"


TAMPERS: dict[str, tuple[str, Callable[[TrialPaths], Any]]] = {
    "weights": ("G102", weights),
    "no signature": ("G102", lambda trial: said(trial, lambda one: one.pop("seal"))),
    "a sum in the manifest": ("G102", lambda trial: said(trial, lambda one: one.update(dropped=1))),
    "governance state": ("G103", lambda trial: resaved(trial, one_more)),
    "root in the manifest": (
        "G103",
        lambda trial: said(trial, lambda one: one.update(root="sha256:11")),
    ),
    "a flipped byte": ("G104", lambda trial: lines(trial, flip)),
    "a record dropped": ("G104", lambda trial: lines(trial, lambda found: found.pop(3))),
    "cut": ("G105", lambda trial: lines(trial, lambda found: found.__delitem__(slice(8, None)))),
    "cut within a line": ("G105", lambda trial: lines(trial, half)),
    "gone": ("G105", lambda trial: trial.attempt(1).ledger.unlink()),
    "rewritten": ("G105", lambda trial: rewritten(trial, lambda _: None)),
    "head in the manifest": (
        "G105",
        lambda trial: said(trial, lambda one: one["ledger"].update(hash="0" * 64)),
    ),
    "no head in the manifest": ("G105", lambda trial: said(trial, lambda one: one.pop("ledger"))),
}


@pytest.mark.parametrize("how", TAMPERS)
def test_each_tamper_is_found_by_its_own_code(how: str, trial: TrialPaths) -> None:
    code, tamper = TAMPERS[how]
    tamper(trial)
    assert refusal(trial) == code


def test_nothing_is_wrong_with_what_nobody_touched(trial: TrialPaths) -> None:
    found = {one.code: one for one in verified(trial)}
    assert {one.outcome for code, one in found.items() if code != "G106"} == {"passed"}
    assert found["G106"].outcome == "recorded"  # the step behind the checkpoint
    assert {one.code for one in verified(trial, PUBLIC)} == set(found)


@pytest.mark.parametrize("segment", [1, 2])
def test_a_segment_that_a_checkpoint_fills_stops_no_trial(segment: int, tmp_path: Path) -> None:
    trial = signed_and_killed(tmp_path, policy(ledger=LedgerRules(segment)))
    attempt = ranks.run(trial, 1)
    verdict = attempt.verdict()
    assert verdict is not None and verdict.verdict == "done", attempt.log()
    found = sound(trial, trust=[PUBLIC])
    assert len(found.rollbacks) == 1
    bodies = [one.body for each in found.ledgers for one in each.records if one.type == "seal"]
    assert bodies and all(one["begin"] <= one["end"] for one in bodies)


def test_a_key_that_nobody_trusts(trial: TrialPaths) -> None:
    assert refusal(trial, OTHER.public_key().public_bytes_raw().hex()) == "G102"


def test_counts_of_the_ledger_are_compared_with_those_of_the_state(trial: TrialPaths) -> None:
    """Whoever rewrites both, and has no key to fear, has to count alike."""

    def more(one: dict[str, Any]) -> None:
        if one["type"] == "step_batch":
            one["body"]["counts"] = {**one["body"]["counts"], "a": 99}
        if one["type"] == "open":
            one["body"]["key"] = ""

    rewritten(trial, more)
    read = records.read(1, trial.attempt(1).ledger)
    assert read is not None
    seq = max(n for n, one in enumerate(read.records) if one.type == "checkpoint")

    def there(one: dict[str, Any]) -> None:
        one["ledger"] = {"attempt": 1, "seq": seq, "hash": read.hashes[seq]}
        one.pop("seal")

    said(trial, there)
    assert refusal(trial) == "G114"


def test_damage_behind_the_checkpoint_does_not_stop_it(trial: TrialPaths) -> None:
    lines(trial, lambda found: found.__setitem__(-1, b"\0\0\n"))
    assert {one.code for one in verified(trial)} >= {"G104", "G105"}


# -- whole attempts ---------------------------------------------------------------------------


def test_an_older_checkpoint_in_the_place_of_a_newer_one_is_taken_for_what_it_is(
    trial: TrialPaths, tmp_path: Path
) -> None:
    """Its step and its record are its own, whatever its folder is called: the same bits follow."""
    shutil.copytree(trial.root.parent.parent, tmp_path / "control" / "EXP", symlinks=True)
    control = ExperimentPaths(tmp_path / "control" / "EXP").trial(1)
    older, *_, last = sorted(path for path in trial.checkpoints.glob("*.g*") if path.name[0] != ".")
    shutil.rmtree(last)
    shutil.copytree(older, last)
    ended = []
    for one in (trial, control):
        attempt = ranks.run(one, 1)
        verdict = attempt.verdict()
        assert verdict is not None and verdict.verdict == "done", attempt.log()
        checks = [check for line in attempt.lines() for check in line.get("checks", ())]
        lost = next(check["detail"] for check in checks if check["code"] == "G106")
        ended.append((int(lost.partition("records ")[2].partition(" ")[0]), *state_of(one)))
    (more, digest, state), (fewer, wanted, control_state) = ended
    assert more < fewer  # what is lost begins earlier
    same_bits(digest, wanted)
    np.testing.assert_array_equal(state["E"], control_state["E"])
    sound(trial)


def test_a_wrong_ledger_stops_the_trial_and_no_older_checkpoint_is_taken(
    trial: TrialPaths,
) -> None:
    lines(trial, flip)
    attempt = ranks.run(trial, 1)
    verdict = attempt.verdict()
    assert verdict is not None and verdict.verdict == "norestart", attempt.log()
    assert verdict.unrecoverable and "G104" in verdict.error
    assert len(list(trial.checkpoints.glob("[0-9]*"))) > 1  # one could have been taken
    assert not attempt.paths.ledger.exists()


def test_a_torn_checkpoint_is_passed_over_and_that_is_recorded(
    trial: TrialPaths, tmp_path: Path
) -> None:
    folder = newest(trial).folder
    [shard] = folder.glob("rank-*-of-00001.h5")
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    attempt = ranks.run(trial, 1)
    verdict = attempt.verdict()
    assert verdict is not None and verdict.verdict == "done", attempt.log()
    [checks] = [line["checks"] for line in attempt.lines() if "checks" in line]
    by_code = {one["code"]: one for one in checks if one["number"] != 14}
    assert by_code["G103"]["outcome"] == "recorded"
    assert folder.name in by_code["G103"]["detail"]
    assert by_code["G106"]["outcome"] == "recorded"
    found = sound(trial)
    assert [one[0] for one in found.rollbacks] == [1]
    calm = make(tmp_path / "calm", 1, policy(), until=12)
    assert ranks.run(calm, 1).verdict() is not None
    same_bits(state_of(trial)[0], state_of(calm)[0])
    np.testing.assert_array_equal(state_of(trial)[1]["E"], state_of(calm)[1]["E"])


CHANGES = """
class Change(pytorch.PyTorchCallback):
    def on_checkpoint_load_start(self, checkpoint):
        if os.environ["RANK"] == "1":
            checkpoint["governance"]["exposure"]["dropped"] += 1
"""


def test_ranks_that_load_different_states_are_found(tmp_path: Path) -> None:
    trial = make(tmp_path / "EXP", 2, policy(), until=9)
    code = MODEL.replace("class Governed(", CHANGES + "\n\nclass Governed(").replace(
        "    def losses(self, batch):",
        "    def build_callbacks(self):\n        return {'c': Change()}\n\n"
        "    def losses(self, batch):",
    )
    (tmp_path / "EXP" / "code" / "model_def.py").write_text(code)
    interrupt(trial, tmp_path / "1", "train:6", kill_behind(trial, 4), 2)
    attempt = ranks.run(trial, 2)
    verdict = attempt.verdict()
    assert verdict is not None and verdict.verdict == "norestart", attempt.log()
    assert "G107" in verdict.error


COUNTS = """
        if os.environ["RANK"] == "1" and batch_idx == 2:
            self.context.core.governance.guard.exposure.dropped += 1
        time.sleep("""


def test_ranks_that_would_save_different_states_are_found(tmp_path: Path) -> None:
    """No checkpoint has an account that is one rank's alone."""
    trial = make(tmp_path / "EXP", 2, policy(), until=9)
    code = MODEL.replace("\n        time.sleep(", COUNTS)
    assert code != MODEL
    (tmp_path / "EXP" / "code" / "model_def.py").write_text(code)
    attempt = ranks.run(trial, 2)
    verdict = attempt.verdict()
    assert verdict is not None and verdict.verdict == "norestart", attempt.log()
    assert "G107: rank 1 is about to save another governance state than rank 0" in verdict.error
    assert [one.name for one in trial.checkpoints.glob("[0-9]*")] == ["00000000.g1"]
