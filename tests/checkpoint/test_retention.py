"""Which checkpoints stay: Determined's truth table, applied while the experiment runs."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcdet import checkpoint
from hpcdet.checkpoint import CheckpointFailed
from hpcdet.checkpoint.format import manifest as manifests
from hpcdet.checkpoint.keep.retention import Candidate, RetentionRules, keep
from hpcdet.process.location import AttemptLocation
from hpcdet.process.ranks import Ranks
from hpcdet.store.config.resolved_config import resolve
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Best, Claim, Closed, Control, End
from hpcdet.store.fs import json_record
from hpcdet.train.checkpoints.checkpointer import Keeper
from hpcdet.train.checkpoints.deadline import Deadline
from hpcdet.train.comm.collectives import Peers
from hpcdet.train.telemetry.tracker import Tracker
from hpcdet.units import Length
from tests.builders import Builder

METRICS = {3: 0.6, 4: 0.5, 5: 0.4, 7: 0.2, 8: 0.3}
TABLE = [Candidate(1 if n <= 5 else 2, f"{n:08d}.g1", METRICS.get(n)) for n in range(1, 11)]


def numbers(policy: RetentionRules, candidates: list[Candidate] = TABLE) -> list[int]:
    return sorted((int(name[:8]) for _, name in keep(candidates, policy)), reverse=True)


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        ((2, 0, 0), [8, 7]),
        ((0, 1, 0), [7, 5]),
        ((0, 0, 1), [10, 5]),
        ((0, 0, 3), [10, 9, 8, 5, 4, 3]),
        ((2, 1, 1), [10, 8, 7, 5]),
        ((0, 0, 0), []),
    ],
)
def test_the_truth_table_of_determined(policy: tuple[int, int, int], kept: list[int]) -> None:
    assert numbers(RetentionRules(*policy)) == kept


def test_larger_may_be_better_and_what_is_not_finite_never_is() -> None:
    assert numbers(RetentionRules(1, 1, 0, smaller_is_better=False)) == [8, 3]
    good = Best(1, 0.5, Length("batches", 1))
    for smaller, metric in itertools.product((True, False), (math.nan, math.inf, -math.inf)):
        with_it = [*TABLE, Candidate(1, "00000006.g1", metric)]
        assert 6 not in numbers(RetentionRules(2, 2, 0, smaller), with_it)
        bad = dataclasses.replace(good, metric=json_record.number(metric))
        assert not bad.beats(None, smaller) and not bad.beats(good, smaller)
        assert good.beats(bad, smaller), "nor does one that former versions wrote stay"


def test_resume_checkpoints_rotate_beside_the_policy() -> None:
    """They neither count as latest or best, nor go while they may be needed."""
    candidates = [*TABLE, Candidate(1, "00000006.g2", 0.1, resume=True)]
    assert numbers(RetentionRules(0, 1, 1), candidates) == [10, 7, 5]
    kept = keep(candidates, RetentionRules(0, 0, 0), resume=2)
    assert sorted(kept) == [
        (1, "00000005.g1"),
        (1, "00000006.g2"),
        (2, "00000009.g1"),
        (2, "00000010.g1"),
    ]
    assert set(map(tuple, kept.values())) == {("resume",)}
    kept = keep(candidates, RetentionRules(0, 0, 0), protected=[(1, "00000001.g1")])
    assert kept == {(1, "00000001.g1"): ["protected"]}


@settings(suppress_health_check=list(HealthCheck), deadline=None)
@given(
    st.lists(
        st.builds(
            Candidate,
            st.integers(1, 3),
            st.integers(0, 9).map("{:08d}.g1".format),
            st.none() | st.floats(),
            st.booleans(),
        ),
        unique_by=lambda candidate: candidate.key,
    ),
    st.builds(RetentionRules, *[st.integers(0, 3)] * 3, st.booleans()),
    st.integers(0, 3),
)
def test_a_trial_can_always_go_on(
    candidates: list[Candidate], policy: RetentionRules, resume: int
) -> None:
    kept = keep(candidates, policy, resume)
    for trial in {candidate.trial for candidate in candidates}:
        own = sorted(c.name for c in candidates if c.trial == trial)
        assert all((trial, name) in kept for name in own[max(0, len(own) - resume) :])
    assert kept.keys() <= {candidate.key for candidate in candidates}
    assert all(kept.values())


def make(paths: ExperimentPaths, trial: int, step: int, metric: float | None = None) -> Path:
    folder = paths.trial(trial).checkpoint(step, 1)
    checkpoint.save(folder, {"step": step}, meta={"kind": "kept", "metric": metric})
    return folder


def names(paths: ExperimentPaths, trial: int) -> list[str]:
    return sorted(os.listdir(paths.trial(trial).checkpoints))


def test_sweep_looks_at_the_other_trials_and_touches_its_own(tmp_path: Path) -> None:
    paths = ExperimentPaths(tmp_path)
    for step in (1, 2, 3, 4):
        make(paths, 1, step, metric=step / 10)
        make(paths, 2, step, metric=step / 100)
    paths.trial(1).checkpoint(9, 1).mkdir()  # begun by attempt 1, never committed
    paths.trial(1).checkpoint(9, 3).mkdir()  # being written by attempt 3
    for attempt in (1, 2):  # in which code collects files
        (paths.trial(1).checkpoints / f".staging-00000009.g{attempt}").mkdir()
    policy = RetentionRules(experiment_best=2, trial_best=0, trial_latest=0)
    swept = checkpoint.sweep(paths, policy, trial=1, attempt=2)
    assert swept == ["00000001.g1", "00000002.g1"]
    left = [".staging-00000009.g2", "00000003.g1", "00000004.g1", "00000009.g3"]
    assert names(paths, 1) == left
    assert len(names(paths, 2)) == 4
    checkpoint.sweep(paths, policy, trial=2, attempt=2, resume=0)
    assert names(paths, 2) == ["00000001.g1", "00000002.g1"]


def test_a_new_best_one_drives_out_those_of_trials_that_have_ended(tmp_path: Path) -> None:
    """And of no others: who still trains removes its own."""
    built = Builder(tmp_path / "x-1")
    paths = built.paths
    for number, reason in ((1, "completed"), (2, ""), (3, "")):
        attempt = built.trial().attempt()
        for step in (1, 2, 3):
            make(paths, number, step, metric=step / 10**number)
        if reason:
            attempt.end(reason)
    policy = RetentionRules(experiment_best=2, trial_best=0, trial_latest=0)
    assert checkpoint.sweep(paths, policy, trial=3, attempt=1) == []
    assert names(paths, 1) == ["00000003.g1"]
    assert len(names(paths, 2)) == len(names(paths, 3)) == 3


@pytest.mark.parametrize(("unit", "per"), [("batches", 1), ("epochs", 2)])
def test_a_member_of_a_population_keeps_what_heirs_may_begin_from(
    tmp_path: Path, unit: str, per: int
) -> None:
    """Its newest four where it was compared, until the search gives it up or is over."""
    asked = {"name": "pbt", "max_length": {unit: 40}, "perturbation_interval": {unit: 3}}
    config = resolve({"searcher": asked, "checkpoint_storage": {"save_trial_best": 0}})
    place, peers = AttemptLocation.of(tmp_path, 1, 1), Peers(Ranks())
    with contextlib.closing(Tracker(place.attempt.journal)) as tracker:
        keeper = Keeper(place, peers, config, tracker, Deadline(None))
        for step in range(8 * per, 18 * per + 2):
            keeper.save(step, {}, {}, meta={"epochs": step // 2})
        paths = ExperimentPaths(tmp_path)
        there = [int(name[:8]) for name in names(paths, 1)]
        assert there == [*(at * per for at in (9, 12, 15, 18)), 18 * per + 1]
        keeper.sweep(resume=1)
        assert len(names(paths, 1)) == 5
        keeper.donates = False
        keeper.sweep(resume=1)
        assert len(names(paths, 1)) == 1


def test_a_checkpoint_that_rank_0_could_not_note_is_lost_for_it_as_for_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it alone would find it there at the next save, which all ranks make together."""
    place = AttemptLocation.of(tmp_path, 1, 1)
    with contextlib.closing(Tracker(place.attempt.journal)) as tracker:
        keeper = Keeper(place, Peers(Ranks()), resolve({}), tracker, Deadline(None))
        with monkeypatch.context() as patch:
            patch.setattr(tracker, "record", None)
            assert keeper.save(1, {}, {}, wait=False)
            keeper.give_up(lambda: False)  # waits for it
        assert keeper.lost and not keeper.drain()
        assert not keeper.save(1, {}, {})  # of this name there is one, but it counts for nobody
        assert keeper.save(2, {}, {}) and keeper.save(2, {}, {})


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("by", ["the next attempt", "who believed it dead"])
def test_an_attempt_that_is_over_commits_nothing_more(tmp_path: Path, by: str, wait: bool) -> None:
    """Its ranks may have been stopped, or their node cut off, while others took the trial."""
    place, paths = AttemptLocation.of(tmp_path, 1, 1), ExperimentPaths(tmp_path)
    with contextlib.closing(Tracker(place.attempt.journal)) as tracker:
        keeper = Keeper(place, Peers(Ranks()), resolve({}), tracker, Deadline(None))
        assert keeper.save(1, {}, {})
        if by == "the next attempt":
            Claim("0002-0000.0", "there").write_once(place.trial.attempt(2).claim)
        else:
            End("lost").write_once(place.attempt.end)
        assert keeper.save(2, {}, {}, wait=wait) == (not wait)
        assert wait or not keeper.drain()
        with pytest.raises(CheckpointFailed, match="attempt 1 is over"):
            keeper.save(3, {}, {}, must=True)
    assert names(paths, 1) == ["00000001.g1"]


def test_a_sweep_may_be_cut_off_anywhere(tmp_path: Path) -> None:
    """What is left is kept checkpoints, whole, and folders that are none; the next one tidies."""
    template = tmp_path / "template"
    for step in range(1, 6):
        make(ExperimentPaths(template), 1, step)

    class Cut(BaseException):
        pass

    reached = nth = 0
    while reached >= nth:
        nth += 1
        paths = ExperimentPaths(tmp_path / f"run-{nth}")
        shutil.copytree(template, paths.root)
        reached = 0
        with pytest.MonkeyPatch.context() as monkeypatch:

            def counted(real: Any, nth: int = nth) -> Any:
                def call(*arguments: Any, **options: Any) -> Any:
                    nonlocal reached
                    reached += 1
                    if reached == nth:
                        raise Cut
                    return real(*arguments, **options)

                return call

            for name in ("unlink", "rmdir", "fsync"):
                monkeypatch.setattr(os, name, counted(getattr(os, name)))
            with contextlib.suppress(Cut):
                checkpoint.sweep(paths, RetentionRules(), trial=1, attempt=1)
        there = paths.trial(1).checkpoints
        for manifest in manifests.committed(there):
            checkpoint.verify(there / manifest.name)
        assert {"00000004.g1", "00000005.g1"} <= {m.name for m in manifests.committed(there)}
        checkpoint.sweep(paths, RetentionRules(), trial=1, attempt=1)
        assert names(paths, 1) == ["00000004.g1", "00000005.g1"]
    assert nth > 9


def test_what_a_user_left_behind_is_neither_restored_nor_removed(tmp_path: Path) -> None:
    paths = Builder(tmp_path / "digits-7f3a").paths
    trial = paths.trial(1)
    for step, attempt in ((10, 1), (20, 1), (30, 1)):
        checkpoint.save(trial.checkpoint(step, attempt), {"step": step})
    control = Control("run", rewinds=[["00000010.g1", 2]])
    control.write_once(trial.control(1))
    loaded = checkpoint.restore(trial.checkpoints)
    assert loaded is not None and loaded.shared == {"step": 10}
    for step in (12, 14, 16):
        checkpoint.save(trial.checkpoint(step, 2), {"step": step})
    checkpoint.sweep(paths, RetentionRules(), trial=1, attempt=2)
    left = ["00000014.g2", "00000016.g2", "00000020.g1", "00000030.g1"]
    assert names(paths, 1) == left, "the newest two to resume from, and what was left behind"


def run(*arguments: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hpcdet.checkpoint", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def test_the_command_for_callers_without_torch(tmp_path: Path) -> None:
    paths = ExperimentPaths(tmp_path)
    paths.config.write_text("name: x\n")
    folders = [make(paths, 1, step) for step in (1, 2, 3, 4)]
    (folders[0] / "rank-00000-of-00001.h5").write_bytes(b"")
    looked = run("verify", *folders[:2])
    rows = [json.loads(line) for line in looked.stdout.splitlines()]
    assert (looked.returncode, [row["state"] for row in rows]) == (9, ["damaged", "valid"])
    digest = manifests.read(folders[1]).digest
    assert (rows[1]["digest"], rows[1]["step"]) == (digest, 2)
    assert json.loads(run("digest", folders[1]).stdout)["digest"] == digest


def test_an_experiment_that_is_over_is_swept_as_a_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from hpcdet.checkpoint.__main__ import main

    paths = ExperimentPaths(tmp_path)
    paths.config.write_text("name: x\ncheckpoint_storage: {save_trial_best: 0}\n")
    for step in (1, 2, 3, 4):
        make(paths, 1, step)
    assert main(["sweep", str(tmp_path)]) == 2
    assert "not over" in capsys.readouterr().err
    assert main(["sweep", str(tmp_path), "--dry-run"]) == 0
    rows = [json.loads(line)["name"] for line in capsys.readouterr().out.splitlines()]
    assert rows == ["00000001.g1", "00000002.g1"]  # the trial may still go on
    assert len(names(paths, 1)) == 4
    Closed("COMPLETED").write_once(paths.closed)
    assert main(["sweep", str(tmp_path)]) == 0
    assert names(paths, 1) == ["00000003.g1", "00000004.g1"]
