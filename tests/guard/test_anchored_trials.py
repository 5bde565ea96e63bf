"""Governed trials give heads of their ledgers to anchors, and go on from no ledger that was cut."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcdet.policy.compiled import LedgerRules
from hpcdet.policy.ledger import anchored
from hpcdet.policy.ledger.owners import owner_of
from hpcdet.policy.ledger.records import LedgerOwner
from hpcdet.process.location import AttemptLocation
from hpcdet.read.lookup import anchored_trials
from hpcdet.rehearsal import rehearse
from hpcdet.store.folder import home
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from tests import ranks
from tests.guard.test_anchoring import UID
from tests.guard.test_governed import make, policy
from tests.guard.test_trial_ledgers import begun, kill_behind, ledgers, sound, steps
from tests.pytorch.test_bits_local import interrupt

pytestmark = pytest.mark.xdist_group("governed")


def rules(*anchors: object, segment: int = 1000) -> LedgerRules:
    return LedgerRules(segment, tuple(map(str, anchors)))


def held(folder: Path, name: str = "EXP") -> list[tuple[int, int, str]]:
    found = anchored.heads_in_folder(folder, name, 1, UID)
    return sorted((one.attempt, one.seq, one.hash) for one in found)


def test_the_head_is_held_from_the_beginning_behind_each_seal_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcdet.guard.accounts.trial_ledger._SOON_S", 0.0)
    given: list[int] = []
    monkeypatch.setattr(
        "hpcdet.guard.accounts.anchoring.Anchoring.put", lambda _, head: given.append(head.seq)
    )
    from hpcdet.policy.keys.run_keys import RunKey
    from tests.policy.test_ledger import KEY

    for key in (RunKey(KEY, None), None):
        given.clear()
        name = "sealed" if key else "bare"
        ledger, trial = begun(tmp_path / name, key, policy(ledger=rules("syslog", segment=5)))
        for n in range(6):
            steps(ledger, trial, 10, begin=10 * n)
        ledger.checkpointed("00000060.g1", "sha256:0", {})
        ledger.close()
        [found] = ledgers(ExperimentPaths(tmp_path / name).trial(1))
        seals = [one.seq for one in found.records if one.type == "seal"]
        named = [one.seq for one in found.records if one.type in ("resume", "checkpoint", "close")]
        assert len(seals) >= 3 or key is None
        assert given == ([named[0], *seals] if key else named)


def killed(tmp_path: Path, folder: Path) -> TrialPaths:
    """A trial that was killed three steps behind its checkpoint of step 8."""
    wanted = policy(ledger=rules(f"file:{folder}", segment=3))
    trial = make(tmp_path / "EXP", 1, wanted, until=12)
    interrupt(trial, tmp_path / "1", "train:11", kill_behind(trial, 8), 1)
    return trial


@pytest.fixture
def worm(tmp_path: Path) -> Path:
    folder = tmp_path / "worm"
    folder.mkdir()
    return folder


def test_a_killed_trial_goes_on_and_its_anchor_holds_both_attempts(
    tmp_path: Path, worm: Path
) -> None:
    trial = killed(tmp_path, worm)
    attempt = ranks.run(trial, 1)
    verdict = attempt.verdict()
    assert verdict is not None and verdict.verdict == "done", attempt.log()
    found = sound(trial)
    hashes = {one.attempt: one.hashes for one in found.ledgers}
    there = held(worm)
    assert {one[0] for one in there} == {1, 2}
    assert all(hashes[attempt][seq] == digest for attempt, seq, digest in there)
    assert there[-1][1] == len(found.ledgers[1].records) - 1, "the last record, too"
    assert not [one for one in attempt.lines() if one.get("event") == "anchor"]


def test_a_trial_goes_on_in_a_fork_and_where_it_was(tmp_path: Path, worm: Path) -> None:
    """Each under its own name: neither's heads are missed in the other one's ledgers."""
    trial = killed(tmp_path, worm)
    paths, fork = (ExperimentPaths(tmp_path / name) for name in ("EXP", "FORK"))
    shutil.copytree(paths.root, fork.root)
    for one in (paths, fork):
        home.settle(one)
    for on in (fork.trial(1), trial):
        attempt = ranks.run(on, 1)
        verdict = attempt.verdict()
        assert verdict is not None and verdict.verdict == "done", attempt.log()
    found = sound(fork.trial(1))
    assert [owner_of(one) for one in found.ledgers] == [("EXP", 1), ("FORK", 1)]
    hashes = found.ledgers[1].hashes
    assert {one[0] for one in held(worm, "FORK")} == {2}
    assert all(hashes[seq] == digest for _, seq, digest in held(worm, "FORK"))
    assert {one[0] for one in held(worm)} == {1, 2}
    for one in (paths, fork):
        name = anchored_trials.name_of(one)
        [heads], _ = anchored_trials.read(one, 0, ())
        assert heads.beside(ledgers(one.trial(1)), (name, 1)).bad is None
        assert {number for of, number in heads.heads if of == name} == {1}


def cut(trial: TrialPaths) -> None:
    """Up to what the checkpoint names: the ledger alone shows nothing."""
    path = trial.attempt(1).ledger
    lines = path.read_bytes().splitlines(keepends=True)
    [ledger] = ledgers(trial)
    last = max(one.seq for one in ledger.records if one.type == "checkpoint")
    path.write_bytes(b"".join(lines[: last + 1]))


def begin_anew(trial: TrialPaths) -> None:
    """Without checkpoints and ledger, as if it had never been trained."""
    shutil.rmtree(trial.checkpoints)
    trial.attempt(1).ledger.unlink()


@pytest.mark.parametrize("how", [cut, begin_anew])
def test_nothing_goes_on_behind_a_ledger_that_was_cut_below_an_anchored_head(
    how: Callable[[TrialPaths], None], tmp_path: Path, worm: Path
) -> None:
    trial = killed(tmp_path, worm)
    [ledger] = ledgers(trial)
    newest = held(worm)[-1]
    if how is cut:  # a head behind the checkpoint, as at the end of a segment
        of = LedgerOwner("EXP", 1, 1)
        last = len(ledger.records) - 1
        newest = (1, last, ledger.hashes[last])
        _anchor(worm, of, last, ledger.hashes[last])
    how(trial)
    attempt = ranks.run(trial, 1)
    verdict = attempt.verdict()
    assert verdict is not None and verdict.verdict == "norestart", attempt.log()
    assert verdict.unrecoverable and "G105" in verdict.error
    assert f"record {newest[1] if how is cut else held(worm)[0][1]}" in verdict.error
    assert str(anchored.path_in(worm, "EXP", 1, UID)) in verdict.error
    anchored.path_in(worm, "EXP", 1, UID).unlink()
    again = ranks.run(trial, 1)  # the control: without the anchor nobody notices
    verdict = again.verdict()
    assert verdict is not None and verdict.verdict == "done", again.log()


def _anchor(folder: Path, of: LedgerOwner, seq: int, digest: str) -> None:
    time = "2026-11-24T05:00:00.000000Z"
    head = anchored.AnchoredHead(of.experiment, of.trial, of.attempt, seq, digest, time)
    with anchored.path_in(folder, of.experiment, of.trial, UID).open("ab") as file:
        file.write(head.to_bytes() + b"\n")


def test_an_anchor_that_fails_stops_nothing_and_is_recorded(tmp_path: Path, worm: Path) -> None:
    worm.rmdir()
    wanted = policy(ledger=rules(f"file:{worm}", "command:hpcdet-none"))
    trial = make(tmp_path / "EXP", 1, wanted, until=9)
    attempt = ranks.run(trial, 1)
    verdict = attempt.verdict()
    assert verdict is not None and verdict.verdict == "done", attempt.log()
    told: dict[str, Any] = {}
    for one in attempt.lines():
        if one.get("event") == "anchor":
            told.setdefault(one["anchor"], one["error"])
    assert "No such file or directory" in told[f"file:{worm}"]
    assert "hpcdet-none" in told["command:hpcdet-none"]
    assert f"hpcdet: anchor file:{worm}: " in attempt.log()
    sound(trial)


def test_a_rehearsal_tells_no_anchor(tmp_path: Path, worm: Path) -> None:
    """It has the experiment's name: what it says would stop the trial itself."""
    wanted = policy(ledger=rules(f"file:{worm}"))
    trial = make(tmp_path / "EXP", 1, wanted, until=9)
    ran: list[AttemptLocation] = []

    def run(place: AttemptLocation) -> int:
        ledger, _ = begun(place.experiment.root, None, wanted, place)  # type: ignore[union-attr]
        ledger.close()
        ledger.anchored(last=True)
        ran.append(place)
        return 0

    assert rehearse(trial.root.parent.parent, 1, run) == 0
    assert list(worm.iterdir()) == []
    run(AttemptLocation.of(tmp_path / "OTHER", 1, 1))
    assert len(held(worm, "OTHER")) >= 1 and ran
