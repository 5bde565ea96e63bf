"""Trials that begin from another one's checkpoint link its ledger, and begin with its exposure."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.governed import forging
from hpcdet.data.sample_order import Order, shuffled
from hpcdet.policy.compiled import CompiledPolicy, LedgerRules
from hpcdet.policy.keys import key_files
from hpcdet.policy.ledger import records
from hpcdet.store.config import resolved_config
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.folder.records import Trial
from hpcdet.store.trials import parents
from tests import ranks
from tests.commands import Cli, cli  # noqa: F401
from tests.governed_model import SIZES
from tests.guard.test_governed import BATCH, MATRIX, make, policy, state_of
from tests.guard.test_trial_ledgers import KEY, PUBLIC, kill_behind, ledgers, sound
from tests.pytorch.test_bits_local import interrupt
from tests.ruled import forge

pytestmark = pytest.mark.xdist_group("governed")

UNTIL = 6


@pytest.fixture
def parent(tmp_path: Path) -> TrialPaths:
    trial = make(tmp_path / "EXP", 1, policy(), until=UNTIL)
    attempt = ranks.run(trial, 1)
    assert attempt.verdict() is not None, attempt.log()
    return trial


def heir(parent: TrialPaths, number: int = 2) -> TrialPaths:
    """A trial that is to train as long again, from the end of another one."""
    child = ExperimentPaths(parent.root.parent.parent).trial(number)
    made = parents.give(parents.donations(parent, "batches")[-1], child)
    named = f"{parent.number}@{UNTIL} batches"
    record = Trial(number, {"global_batch_size": BATCH}, 11, parent=named)
    Trial(**{**vars(record), "origin": parents.origin_of(made)}).write_once(child.record)
    config = ExperimentPaths(parent.root.parent.parent).config
    config.write_text(config.read_text().replace(f"batches: {UNTIL}\n", f"batches: {2 * UNTIL}\n"))
    return child


def checks_of(attempt: Any) -> dict[str, Any]:
    [found] = [line["checks"] for line in attempt.lines() if "checks" in line]
    return {one["code"]: one for one in found}


def test_an_heir_links_its_parents_ledger_and_counts_on(parent: TrialPaths, tmp_path: Path) -> None:
    child = heir(parent)
    interrupt(child, tmp_path / "1", "train:11", kill_behind(child, 8), 1)
    attempt = ranks.run(child, 1)
    verdict = attempt.verdict()
    assert verdict is not None and verdict.verdict == "done", attempt.log()
    assert {one["outcome"] for one in checks_of(attempt).values()} <= {
        "passed",
        "recorded",
        "unknown",
    }
    assert checks_of(attempt)["G106"]["outcome"] == "recorded"

    found = sound(child)
    [theirs] = ledgers(parent)
    link = found.ledgers[0].records[0].body["parent"]
    assert theirs.hashes[link["seq"]] == link["hash"]
    assert theirs.records[link["seq"]].body["name"] == f"{UNTIL:08d}.g1"
    [resume, _] = [r for one in found.ledgers for r in one.records if r.type == "resume"]
    before = state_of(parent)[1]["exposure"]
    assert resume.body["inherited"] == before
    mine = dict.fromkeys("abc", 0)
    for record in found.counting():
        if record.type == "step_batch":
            for kind, units in record.body["counts"].items():
                mine[kind] += units
    after = state_of(child)[1]["exposure"]["rows"]
    assert after == {kind: before["rows"][kind] + mine[kind] for kind in "abc"}
    assert state_of(child)[1]["complete"] is True


def test_a_parent_whose_ledger_is_broken_gives_nothing(parent: TrialPaths) -> None:
    child = heir(parent)
    path = parent.attempt(1).ledger
    path.write_bytes(path.read_bytes().replace(b'"dropped":0', b'"dropped":1', 1))
    attempt = ranks.run(child, 1)
    verdict = attempt.verdict()
    assert verdict is not None and verdict.verdict == "norestart", attempt.log()
    assert "G104" in verdict.error


def forged_by(parent: TrialPaths, key: Ed25519PrivateKey) -> None:
    """Write its newest checkpoint and its ledger again, all of it signed by another key."""
    mine = key_files.public(key)

    def record(one: dict[str, Any]) -> None:
        if one["type"] == "open":
            one["body"]["key"] = mine

    forging.forge(parent, key, record=record)


def signed(tmp_path: Path, wanted: CompiledPolicy, **changes: Any) -> TrialPaths:
    """A trial that has ended, whose key is ``KEY``."""
    (tmp_path / "run.key").write_text(KEY.private_bytes_raw().hex())
    (tmp_path / "run.key").chmod(0o600)
    section: dict[str, Any] = {"policy": "test", "digest": wanted.digest, "signer": PUBLIC}
    section["run_key"] = {"file": str(tmp_path / "run.key")}
    parent = make(tmp_path / "EXP", 1, wanted, until=UNTIL, governance=section, **changes)
    assert ranks.run(parent, 1).verdict() is not None
    return parent


@pytest.mark.parametrize("copied", [False, True])
def test_an_heir_does_not_begin_from_another_trials_checkpoint(
    copied: bool,
    cli: Cli,  # noqa: F811
    tmp_path: Path,
) -> None:
    """Whole and signed by the same key, with the ledger that it was made with."""
    (tmp_path / "other").mkdir()
    parent = signed(tmp_path, policy())
    other = signed(tmp_path / "other", policy(), seed=8)
    child = heir(parent)
    if copied:
        record = json.loads(child.record.read_text())
        child.record.write_text(json.dumps({**record, "parent": f"../EXP/{record['parent']}"}))
        shutil.rmtree(child.checkpoints)
        [*_, given] = parents.donations(other, "batches")
        parents.give(given, child)
        parents.give_ledgers(given, child)
    else:
        parent.attempt(1).ledger.write_bytes(other.attempt(1).ledger.read_bytes())
    said = "G103: it is another checkpoint" if copied else "G105"
    [made] = child.checkpoints.glob("*.g0")
    assert said in " ".join(cli("ckpt", "verify", made, "--quick", code=9).err.split())
    attempt = ranks.run(child, 1)
    verdict = attempt.verdict()
    assert verdict is not None and verdict.verdict == "norestart", attempt.log()
    assert said in verdict.error


@pytest.mark.parametrize("fork", [False, True])
def test_a_parent_that_another_key_has_signed_gives_nothing(fork: bool, tmp_path: Path) -> None:
    parent = signed(tmp_path, policy())
    forged_by(parent, Ed25519PrivateKey.generate())
    child = heir(parent)
    if fork:
        record = json.loads(child.record.read_text())
        record["parent"] = f"../EXP/{record['parent']}"
        child.record.write_text(json.dumps(record))
    attempt = ranks.run(child, 1)
    verdict = attempt.verdict()
    assert verdict is not None and verdict.verdict == "norestart", attempt.log()
    assert "G102" in verdict.error and "is not trusted" in verdict.error


def anchored(tmp_path: Path) -> TrialPaths:
    """A trial that has ended, whose key is ``KEY``, and whose heads an anchor holds."""
    (worm := tmp_path / "worm").mkdir()
    rules = LedgerRules(anchor=(f"file:{worm}",))
    return signed(tmp_path, dataclasses.replace(policy(), ledger=rules))


def skipped(one: dict[str, Any]) -> None:
    if one["type"] == "step_batch":
        one["body"]["skipped"] = [1]


def without(parent: TrialPaths) -> None:
    """Its key writes it anew with one record less: the checkpoint's is before the anchored one."""

    def record(one: dict[str, Any]) -> None:
        if (one["type"], one["step"]) == ("eval", UNTIL):
            one["type"] = ""

    def said(told: dict[str, Any]) -> None:
        told["ledger"]["seq"] -= 1

    forging.forge(parent, KEY, record=record, said=said)


@pytest.mark.parametrize("shorter", [False, True])
def test_a_parent_that_was_written_anew_by_its_key_gives_nothing_where_an_anchor_knows(
    shorter: bool,
    cli: Cli,  # noqa: F811
    tmp_path: Path,
) -> None:
    parent = anchored(tmp_path)
    if not shorter:
        attempt = ranks.run(heir(parent), 1)
        assert attempt.verdict() is not None and "G105" not in attempt.log(), attempt.log()
    forging.forge(parent, KEY, record=skipped) if not shorter else without(parent)
    attempt = ranks.run(child := heir(parent, 3), 1)
    verdict = attempt.verdict()
    assert verdict is not None and verdict.verdict == "norestart", attempt.log()
    assert "G105" in verdict.error and "it was written anew" in verdict.error
    assert str(parent.attempt(1).ledger) in verdict.error
    if not shorter:  # nor does the heir that has ended
        err = " ".join(cli("ledger", "verify", child.root.parent / "0002", code=9).err.split())
        assert "G105: of its parent: attempt 1, record 11: it was written anew" in err
        assert f"error: {parent.attempt(1).ledger}: " in err


def test_a_copy_that_ends_before_an_anchored_head_leaves_a_history_unknown(
    cli: Cli,  # noqa: F811
    tmp_path: Path,
) -> None:
    parent = anchored(tmp_path)
    without(parent)
    child = heir(parent)
    record = json.loads(child.record.read_text())
    child.record.write_text(json.dumps({**record, "parent": f"../EXP/{record['parent']}"}))
    parents.give_ledgers(parents.donations(parent, "batches")[-1], child)
    [copy] = parents.ledgers(child)
    [theirs] = ledgers(parent)
    last = max(one.seq for one in theirs.records if one.type == "checkpoint") + 1
    lines = copy.ledger.read_bytes().splitlines(keepends=True)
    copy.ledger.write_bytes(b"".join(lines[: last + 1]))
    attempt = ranks.run(child, 1)
    verdict = attempt.verdict()
    assert verdict is not None and verdict.verdict == "done", attempt.log()
    assert checks_of(attempt)["G105"]["outcome"] == "unknown"
    assert "the copy of its ledger ends before it" in checks_of(attempt)["G105"]["detail"]
    assert state_of(child)[1]["complete"] is False
    said = json.loads(cli("ledger", "verify", child.root, "-o", "json").out)["warnings"]
    assert "holds record 16 of its parent's attempt 1, and the copy ends before" in said[0]


def ungoverned(paths: ExperimentPaths) -> None:
    """Take the policy out of the config, as its owner may."""
    config = yaml.safe_load(paths.config.read_text())
    config["governance"] = None
    config["searcher"]["constraints"] = []
    paths.config.write_bytes(resolved_config.dump(config))


@pytest.mark.parametrize("whose", ["its own", "its parent's"])
def test_governed_weights_are_not_gone_on_from_without_their_policy(
    whose: str, parent: TrialPaths
) -> None:
    child, paths = heir(parent), ExperimentPaths(parent.root.parent.parent)
    ungoverned(paths)
    with (paths.code / "model_def.py").open("a") as code:
        code.write("open('touched', 'w').close()\n")
    for left, touched in ((True, False), (False, True)):
        if not left:
            paths.compiled_policy.unlink()  # and nothing else shows that there ever was one
        attempt = ranks.run(parent if whose == "its own" else child, 1)
        verdict = attempt.verdict()
        assert verdict is not None and verdict.verdict == "norestart", attempt.log()
        assert "G110" in verdict.error
        assert bool(list(paths.root.rglob("touched"))) == touched


def test_a_parent_without_a_ledger_leaves_a_history_unknown(parent: TrialPaths) -> None:
    child = heir(parent)
    parent.attempt(1).ledger.unlink()
    attempt = ranks.run(child, 1)
    verdict = attempt.verdict()
    assert verdict is not None and verdict.verdict == "done", attempt.log()
    assert checks_of(attempt)["G105"]["outcome"] == "unknown"
    assert state_of(child)[1]["complete"] is False


def test_an_heir_whose_policy_does_not_know_a_source_is_not_clean_of_it(
    cli: Cli,  # noqa: F811
    tmp_path: Path,
) -> None:
    """Its own checkpoints say what its parent was trained on, in each of its attempts."""
    parent = make(cli.root / "parent-1111", 1, policy(), until=UNTIL)
    assert ranks.run(parent, 1).verdict() is not None
    wanted = dataclasses.replace(policy(), sources=policy().sources[:2], matrix=MATRIX[:2])
    root = cli.root / "heir-2222"
    other = make(root, 1, wanted, until=2 * UNTIL)
    code = root / "code" / "model_def.py"
    code.write_text(code.read_text().replace(', "c": 12', ""))
    made = parents.give(parents.donations(parent, "batches")[-1], other)
    named = f"../parent-1111/1@{UNTIL} batches"
    record = Trial(1, {"global_batch_size": BATCH}, 11, parent=named)
    other.record.unlink()
    Trial(**{**vars(record), "origin": parents.origin_of(made)}).write_once(other.record)
    # what it has of its parent is compared with the ledgers of that
    [manifest] = other.checkpoints.glob("*.g0/MANIFEST.json")
    cli("ckpt", "verify", manifest.parent, "--quick")
    whole = manifest.read_bytes()
    forge(manifest.parent, lambda said: said["exposure"].__setitem__(2, [0.0, 0.0, 0.0]))
    assert "G114" in cli("ckpt", "verify", manifest.parent, "--quick", code=9).err
    manifest.write_bytes(whole)
    interrupt(other, tmp_path / "1", "train:11", kill_behind(other, 8), 1)
    attempt = ranks.run(other, 1)
    verdict = attempt.verdict()
    assert verdict is not None and verdict.verdict == "done", attempt.log()
    assert checks_of(attempt)["G118"]["outcome"] == "passed"
    assert checks_of(attempt)["G114"]["outcome"] == "passed"
    before, after = state_of(parent)[1], state_of(other)[1]
    np.testing.assert_array_equal(after["E"][2], before["E"][2])
    [item] = cli("policy", "report", "heir-2222", "-o", "json").items
    assert item["sources"] == ["a", "b", "c"] and item["matrix"][2] == [0, 0, 0]
    assert item["exposure"] == after["E"].tolist()
    assert f"denied, {after['E'][2][2]:g} before" in cli("policy", "report", "heir-2222").out
    reached = {one["experiment"] for one in cli("policy", "impact", "c", "-o", "json").items}
    assert reached == {"parent-1111", "heir-2222"}
    assert item["unverified"] == "" and "NOT VERIFIED" not in cli("policy", "impact", "c").err
    cli("ledger", "verify", "heir-2222")


def test_ledgers_go_with_a_checkpoint_into_another_experiment(
    parent: TrialPaths, tmp_path: Path
) -> None:
    other = ExperimentPaths(tmp_path / "other").trial(1)
    given = parents.donations(parent, "batches")[-1]
    parents.give_ledgers(given, other)
    [copy] = parents.ledgers(other)
    assert copy.ledger.read_bytes() == parent.attempt(1).ledger.read_bytes()
    again = ExperimentPaths(tmp_path / "again").trial(1)
    parents.give_ledgers(parents.Donation(given.folder, given.at, given.manifest, other), again)
    [copy] = parents.ledgers(again)  # of copies, too
    assert records.read(1, copy.ledger) is not None


def test_with_what_a_trial_began_from_go_the_ledgers_of_who_made_it(
    parent: TrialPaths, tmp_path: Path
) -> None:
    """A fork, by then, of an heir that was killed before it had a checkpoint of its own."""
    child = heir(parent)
    child.attempt(1).ledger.parent.mkdir(parents=True)
    child.attempt(1).ledger.write_text("not asked\n")
    [given] = parents.donations(child, "batches")
    fork = ExperimentPaths(tmp_path / "FORK").trial(2)
    parents.give_ledgers(given, fork)
    [copy] = parents.ledgers(fork)
    assert copy.ledger.read_bytes() == parent.attempt(1).ledger.read_bytes()


def test_a_record_is_asked_when_it_was_trained_and_what_it_may_have_changed(
    cli: Cli,  # noqa: F811
    tmp_path: Path,
) -> None:
    trial = make(tmp_path / "EXP", 1, policy(), until=14)
    interrupt(trial, tmp_path / "1", "train:11", kill_behind(trial, 8), 1)
    assert ranks.run(trial, 1).verdict() is not None
    order = Order(62, BATCH, lambda epoch: shuffled(62, 7, epoch))
    wholes = [part.whole for part, _ in zip(order.slices(0, 0, 1), range(14), strict=False)]
    begins = dict(zip(SIZES, np.cumsum([0, *SIZES.values()]).tolist(), strict=False))
    layers = {"a": ["low", "high", "head"], "b": ["high", "head"], "c": ["head"]}
    seen = 0
    for source, number in (("a", 0), ("a", 29), ("b", 7), ("c", 11)):
        asked = ("ledger", "query", trial.root, "--record", f"{source}:{number}", "-o", "json")
        items = cli(*asked).items
        steps = [n for n, one in enumerate(wholes) if begins[source] + number in one]
        assert [one["step"] for one in items] == steps
        assert [one["epoch"] for one in items] == [n // 6 for n in steps]
        assert all(one["layers"] == layers[source] for one in items)
        seen += len(items)
    assert seen > 8
    for wrong, says in (("a:30", "30 records"), ("z:0", "no source z"), ("a", "no SOURCE:N")):
        assert says in cli("ledger", "query", trial.root, "--record", wrong, code=2).err
    assert "one of" in cli("ledger", "query", trial.root, code=2).err
