"""Failing checks that somebody answers for: training goes on, and what was found is told."""

from __future__ import annotations

import copy
import dataclasses
import json
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hpcdet.guard.resume.active_chains import ActiveChains
from hpcdet.guard.resume.resume_verdicts import Overrides
from hpcdet.guard.resume.same_tests import same_records
from hpcdet.policy.changes import change_records
from hpcdet.policy.changes.policy_history import OVERRIDABLE
from hpcdet.policy.codes import GovernanceBroken
from hpcdet.policy.provenance import source_provenance
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from tests import ranks
from tests.commands import Cli
from tests.guard.test_fingerprints import CALLBACK, TAMPERS, Prints
from tests.guard.test_governed import MODEL, UNTIL, policy, state_of
from tests.guard.test_policy_changed import begun, checks_of, ended, writer
from tests.guard.test_provenance import exposed, governed
from tests.guard.test_state import Trial, changed, era_swapped, one_more, order, swapped
from tests.guard.test_withheld import made
from tests.pytorch.test_bits_local import interrupt, signals

pytestmark = pytest.mark.xdist_group("governed")

ACT = {"number": 7, "by": "lee", "reason": "we looked at it", "until": 0}
ALL = Overrides({code: {**ACT, "code": code} for code in OVERRIDABLE})


def without(code: str) -> Overrides:
    return Overrides({name: act for name, act in ALL.acts.items() if name != code})


# -- each check -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "tamper"),
    [
        ("G114", lambda state: state.update(E=np.array(state["E"]) + 1)),
        ("G114", swapped),
        ("G119", one_more),
    ],
)
def test_rows_that_are_others_are_taken_as_they_are_and_those_from_here_on_are_proven(
    code: str, tamper: Any
) -> None:
    trial = Trial().train(9)
    saved = copy.deepcopy(trial.state.encode())
    tamper(saved)
    with pytest.raises(GovernanceBroken, match=code):
        Trial().load(saved, trial.records, overrides=without(code))
    later = Trial()
    checks = later.load(saved, trial.records, overrides=ALL)
    [found] = [one for one in checks if one.outcome == "overridden"]
    assert found.code == code and found.detail.endswith("; override 0007 by lee: we looked at it")
    later.state.judge(checks)
    assert not later.state.complete
    again = later.go_on(3).state.encode()
    assert {one.outcome for one in Trial().load(again, later.records)} == {"passed"}
    swapped(again)
    with pytest.raises(GovernanceBroken, match="G114"):
        Trial().load(again, later.records)


def test_an_era_of_other_rows_is_told() -> None:
    first = policy()
    trial = Trial(first).train(4)
    now = changed(first, policy(((1.0, 1.0, 1.0), (0.0, 0.0, 1.0), (0.0, 0.0, 0.5))))
    later = Trial(decided=now)
    later.load(trial.state.encode(), trial.records)
    saved = copy.deepcopy(later.go_on(4).state.encode())
    era_swapped(saved)
    with pytest.raises(GovernanceBroken, match="G114"):
        Trial(decided=now).load(saved, later.records)
    found = Trial(decided=now).load(saved, later.records, overrides=ALL)
    assert "up to the change of policy" in next(
        one.detail for one in found if one.outcome == "overridden" and "change" in one.detail
    )


def test_another_mixture_and_another_router_are_told_and_alarm_nobody() -> None:
    other = dataclasses.replace(policy().sources[2], share=30)
    others = (dataclasses.replace(one, share=1) for one in policy().sources[:2])
    wanted = policy(sources=(*others, other))
    trial = Trial(wanted).train(40)
    found = Trial(wanted).load(trial.state.encode(), trial.records, overrides=ALL)
    assert {one.code for one in found if one.outcome == "overridden"} == {"G118"}
    saved = Prints().take()
    assert Prints().compare(saved, overrides=ALL)["G122"] == "passed"
    saved["software"]["router"] = "sha256:00"
    assert Prints().compare(saved, overrides=ALL)["G122"] == "overridden"
    assert Prints().compare(saved, overrides=without("G122"))["G122"] == "warned"


def test_weights_bands_optimizers_and_random_numbers_are_told() -> None:
    saved = Prints().take()
    edited = Prints()
    with torch.no_grad():
        edited.trial.parameters["0.4.weight"][0] *= 1.1
    edited.states[0]["state"]["0.0.weight"].pop("step")
    found = edited.compare(saved, overrides=ALL)
    assert (found["G116"], found["G120"], found["G122"]) == ("overridden", "overridden", "passed")
    with pytest.raises(GovernanceBroken, match="G120"):
        edited.compare(saved, overrides=without("G120"))
    drawn = Prints()
    drawn.rng["torch"][4] += 1
    assert drawn.compare(saved, overrides=ALL)["G120"] == "overridden"
    held = Prints(reference={"high": (0.1, 0.001)}, on_violation="hold")
    assert held.compare(held.take(), overrides=ALL)["G117"] == "overridden"
    with pytest.raises(GovernanceBroken, match="G117"):
        held.compare(held.take(), overrides=without("G117"))


def test_other_twins_say_nothing_any_more() -> None:
    other = made(key="e" * 16).encode()
    now = made()
    with pytest.raises(GovernanceBroken, match="G119"):
        same_records(now, other, without("G119"), inherited=False)
    assert not now.void
    [check] = same_records(now, other, ALL, inherited=False)
    assert check.outcome == "overridden" and now.void


@pytest.mark.parametrize("how", ["the data", "the chain"])
def test_a_source_whose_chain_or_data_have_changed_is_not_covered_any_more(
    how: str, tmp_path: Path
) -> None:
    wanted = governed(tmp_path, "a", "b", least=0.0)
    rows = exposed(a=3, b=4)
    before = ActiveChains(wanted, source_provenance.verified(wanted, tmp_path))
    if how == "the data":
        shutil.rmtree(tmp_path / "data" / "b")
        with pytest.raises(GovernanceBroken, match="G111"):
            source_provenance.verified(wanted, tmp_path)
    found = source_provenance.verified(wanted, tmp_path, tolerant=True)
    if how == "the chain":
        found[1] = dataclasses.replace(found[1], complete=False, reason="it lacks a signature")
    for overrides in (Overrides(), without("G111")):
        with pytest.raises(GovernanceBroken, match="G111"):
            ActiveChains(wanted, found).load(before.encode(rows), rows, overrides, inherited=False)
    if how == "the data":
        with pytest.raises(GovernanceBroken, match="G111"):  # a trial does not begin so
            ActiveChains(wanted, found).checks()
    later = ActiveChains(wanted, found)
    checks = later.load(before.encode(rows), rows, ALL, inherited=False)
    assert checks[0].outcome == "overridden"
    assert later.overall(rows) == 3 / 7
    if how == "the chain":
        again = ActiveChains(wanted, found)
        [check] = again.load(later.encode(rows), rows, inherited=False)
        assert check.outcome == "recorded"


def test_what_is_over_is_named_where_the_check_fails_again() -> None:
    past = Overrides({}, {"G114": 3})
    trial = Trial().train(9)
    with pytest.raises(GovernanceBroken) as found:
        Trial().load(trial.state.encode(), trial.records, order(seed=8), overrides=past)
    assert "override 0003 is for other checkpoints" in found.value.hint


# -- live trials ----------------------------------------------------------------------------------


def stopped(folder: Path, scratch: Path, world: int) -> TrialPaths:
    """A trial that was interrupted, and whose code changes weights where ``TAMPER`` says so."""
    trial = begun(folder, world, policy())
    code = MODEL.replace("class First:", f"{CALLBACK}\n\nclass First:").replace(
        "    def evaluate_batch",
        "    def build_callbacks(self):\n"
        "        return {'tamper': Tamper()}\n\n    def evaluate_batch",
    )
    (folder / "code" / "model_def.py").write_text(code)
    first = interrupt(trial, scratch / "1", "train:5", signals(signal.SIGUSR2, world - 1), world)
    assert first.verdict() is not None, first.log()
    return trial


def forged(folder: Path, how: str) -> None:
    """The record, as it would lie there if somebody else had written it."""
    path = folder / "policies" / "0001.json"
    whole = json.loads(path.read_bytes())
    change = change_records.change_of(whole["record"], "")
    if how == "another key":
        key = Ed25519PrivateKey.generate()
        run = key.public_key().public_bytes_raw().hex()
        record = change_records.sign(dataclasses.replace(change, run=run), key)
    elif how == "its own key in another's name":
        record = change_records.sign(change, Ed25519PrivateKey.generate())
    else:
        said = dataclasses.replace(change, until=10**9).to_bytes()
        payload = change_records.dsse.sign(
            change_records.PAYLOAD_TYPE, said, Ed25519PrivateKey.generate()
        )["payload"]
        record = {**whole["record"], "payload": payload}
    path.write_bytes(change_records.to_file(record, []))


@pytest.mark.parametrize("world", [1, 2])
def test_a_stopped_trial_goes_on_where_somebody_answers_for_it_and_nowhere_else(
    world: int, cli: Cli, tmp_path: Path
) -> None:
    folder = cli.root / "governed-7f3a"
    trial = stopped(folder, tmp_path, world)
    tampered = {"TAMPER": TAMPERS["G116"]}
    override = ("policy", "override", "governed-7f3a/1", "--code", "G116", "--reason", "we looked")

    attempt = ranks.run(trial, world, **tampered)
    assert ended(attempt) == "norestart" and "G116: " in attempt.log(), attempt.log()

    cli("policy", "override", "governed-7f3a", "--code", "G120", "--reason", "another check")
    attempt = ranks.run(trial, world, **tampered)
    assert ended(attempt) == "norestart" and "G116: " in attempt.log(), attempt.log()
    (folder / "policies" / "0001.json").unlink()

    [item] = cli(*override, "-o", "json").items
    assert (item["code"], item["trial"], item["until"]) == ("G116", 1, 0)
    genuine = (folder / "policies" / "0001.json").read_bytes()
    for how in ("another key", "its own key in another's name", "by hand"):
        forged(folder, how)
        attempt = ranks.run(trial, world, **tampered)
        assert ended(attempt) == "norestart" and "G102: " in attempt.log(), attempt.log()
        (folder / "policies" / "0001.json").write_bytes(genuine)

    attempt = ranks.run(trial, world, **tampered)
    assert ended(attempt) == "done", attempt.log()
    assert "G116 overridden: " in attempt.log()
    [found] = [one for one in checks_of(attempt) if one["outcome"] == "overridden"]
    assert found["code"] == "G116" and "the spectral entropy of 0.4.weight is " in found["detail"]
    assert "; override 0001 by " in found["detail"] and found["detail"].endswith(": we looked")
    assert not state_of(trial)[1]["complete"]

    [report] = cli("policy", "report", "governed-7f3a", "-o", "json").items
    assert found["detail"] in [
        one["detail"] for one in report["checks"] if one["outcome"] == "overridden"
    ]
    assert "G116 overridden" in cli("policy", "report", "governed-7f3a").out
    assert "HISTORY OF THE WEIGHTS IS NOT KNOWN" in cli("policy", "report", "governed-7f3a").out
    assert cli("ledger", "verify", "governed-7f3a").code == 0
    last = json.loads(trial.attempt(attempt.paths.number).ledger.read_text().splitlines()[-1])
    assert last["type"] in ("close", "seal")

    ranks.control(trial, "go_on", UNTIL + 2)  # what is made from then on is news again
    attempt = ranks.run(trial, world, **tampered)
    assert ended(attempt) == "norestart", attempt.log()
    assert "override 0001 is for other checkpoints" in attempt.log()
    cli(*override, "--until", UNTIL)
    attempt = ranks.run(trial, world, **tampered)
    assert ended(attempt) == "done", attempt.log()
    assert cli.checked >= {"policy.override", "policy.report"}


def test_an_override_of_another_trial_does_not_count(tmp_path: Path) -> None:
    trial = stopped(tmp_path / "EXP", tmp_path, 1)
    paths = ExperimentPaths(tmp_path / "EXP")
    writer(paths.root).override("G120", "of the second", trial=2)
    attempt = ranks.run(trial, 1, TAMPER=TAMPERS["G120"])
    assert ended(attempt) == "norestart" and "G120: " in attempt.log(), attempt.log()
    writer(paths.root).override("G120", "of all")
    attempt = ranks.run(trial, 1, TAMPER=TAMPERS["G120"])
    assert ended(attempt) == "done", attempt.log()
    assert [one["code"] for one in checks_of(attempt) if one["outcome"] == "overridden"] == ["G120"]
    assert state_of(trial)[1]["complete"]
