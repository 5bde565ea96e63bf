"""A worker begins only what gets anywhere in the time that its allocation has left."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcdet.read.experiment import gather
from hpcdet.read.views import timeline
from hpcdet.schedulers.common.allocation import Allocation
from hpcdet.store.config import resolved_config
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Claim, WorkerClaim, WorkerEnd
from hpcdet.store.fs import files, freshness, journal, packed
from hpcdet.store.trials.standing import TrialFiles
from hpcdet.units import Length
from hpcdet.worker.allocation.fitting import AttemptPace, Fitting, measure
from hpcdet.worker.allocation.time_left import Remaining
from hpcdet.worker.claims import claims
from hpcdet.worker.claims.claimable import Outlook
from tests.builders import Builder, TrialBuilder, at, put
from tests.commands import Cli
from tests.worker.test_claims import at_work


@pytest.fixture
def built(tmp_path: Path) -> Builder:
    return Builder(tmp_path / "digits-7f3a", worker={"min_segment_s": 1})


def attempt(built: Builder, trial: Any, *, start_s: float = 30, until: int = 60) -> Any:
    """An attempt that took so long to its first batch, then a second for each, and 2 to save."""
    found = trial.attempt()
    claim = Claim.read(found.paths.claim)
    assert claim is not None
    put(found.paths.claim, replace(claim, at=at(built.clock - start_s)))
    built.clock += until - 2
    name = f"{until:08}.g{found.paths.number}"
    found.line("checkpoint", step=until, save_s=2.0, name=name, digest="", bytes=9, metric=None)
    found.batches = until
    found.line("progress", batches=until, records=8 * until, epochs=until // 20)
    return found


def fitting(built: Builder, left_s: float, noted: list[dict[str, Any]]) -> Fitting:
    now = time.time()
    resolved = resolved_config.load(built.paths.config)
    remaining = Remaining(now + left_s, 10, now + left_s - 10_000)
    return Fitting(resolved, remaining, lambda kind, **about: noted.append({"kind": kind, **about}))


def test_the_pace_of_an_attempt_is_what_its_journal_says(built: Builder) -> None:
    told = attempt(built, built.trial())
    pace = measure(told.paths)
    assert pace is not None
    assert (pace.start_s, pace.save_s) == (30, 2)
    assert pace.batch_s == pytest.approx(1, abs=0.05)
    assert pace.units == {"batches": 60, "records": 480, "epochs": 3}
    # to the rung if that is near, else as long as it took to come and will take to save
    assert AttemptPace(30, 2, 1.0).useful_s(5) == 5
    assert AttemptPace(30, 2, 1.0).useful_s(500) == 32
    assert AttemptPace(3, 2, 20.0).useful_s(500) == 20  # a batch is a batch
    assert AttemptPace(30, 2).useful_s(5) == 32 and AttemptPace(30, 2).useful_s(math.inf) == 32


def test_what_does_not_fit_is_passed_over_for_what_does(built: Builder) -> None:
    far, near, new = built.trial(), built.trial(), built.trial()
    for trial in (far, near):
        attempt(built, trial).end("preempted")
    near.control("run", until=Length("batches", 70))
    noted: list[dict[str, Any]] = []
    tight = fitting(built, 60, noted)

    def fits(which: Fitting) -> list[bool]:
        return [which.fits(TrialFiles(each.paths)) for each in (far, near, new)]

    # the far one needs 30 to begin, 32 to be worth it, 10 to leave; of the new one nobody knows
    assert fits(tight) == fits(tight) == [False, True, True]
    [note] = noted
    assert (note["kind"], note["trial"], note["left_s"]) == ("passed_over", 1, pytest.approx(60, 1))
    assert note["start_s"] + note["useful_s"] + note["leave_s"] == pytest.approx(72, abs=3)
    assert fits(fitting(built, 80, [])) == [True] * 3
    assert fits(fitting(built, 9_000, [])) == [True] * 3
    # what has just run here says how it would go with the new one
    tight.learn(far.paths.attempt(1))
    assert fits(tight) == [False, True, False]
    me = built.paths.worker(1, 0, 0)
    WorkerClaim("1", "n1", 1).write_once(me.claim)
    taken = claims.next_attempt(built.paths, me, Allocation("1", ("n1",)), None, tight.fits)
    assert taken is not None and (taken.trial, taken.number) == (2, 2)


def test_whether_trials_fit_is_asked_of_one_reading_of_their_files(
    built: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials, now = [built.trial() for _ in range(3)], [0.0]
    for trial in trials:
        attempt(built, trial).end("preempted")
    me, here = built.paths.worker(1, 0, 0), Allocation("1", ("n1",))
    WorkerClaim("1", "n1", 1).write_once(me.claim)
    tight, outlook = fitting(built, 60, []), Outlook(built.paths, lambda: now[0])
    opened: list[Path] = []
    real = packed.open_file
    monkeypatch.setattr(packed, "open_file", lambda path: opened.append(path) or real(path))

    def look(fits: Callable[[TrialFiles], bool]) -> int:
        now[0] += 2 * freshness.TICK_S
        tight.passed_over.clear()
        opened.clear()
        assert claims.next_attempt(built.paths, me, here, None, fits, outlook) is None
        return len(opened)

    assert look(tight.fits) > 0 and look(tight.fits) > 0
    assert look(tight.fits) == 0 and tight.passed_over == {1, 2, 3}
    actions = list[tuple[str, str]]()

    def fits(found: TrialFiles) -> bool:
        assert found.control is not None
        actions.append((found.standing.state, found.control.action))
        return False

    trials[0].control("pause")
    assert look(fits) > 0
    assert actions == [("runnable", "run")] * 2, "what is paused is not asked for"

    def late(found: TrialFiles) -> bool:
        TrialBuilder(built, found.paths).control("pause")  # after it was read
        return fits(found)

    actions.clear()
    look(late)
    assert actions == [("runnable", "run")] * 2, "both are of one moment"
    assert look(fits) > 0 and len(actions) == 2, "and then it is seen"


def test_epochs_are_counted_in_batches(built: Builder, tmp_path: Path) -> None:
    search = {"name": "single", "metric": "validation_loss", "max_length": {"epochs": 4}}
    other = Builder(tmp_path / "epochs-0001", searcher=search)
    trial = other.trial()
    attempt(other, trial).end("preempted")  # 3 of them in 60 batches
    trial.control("run", until=Length("epochs", 4))
    noted: list[dict[str, Any]] = []
    assert not fitting(other, 55, noted).fits(TrialFiles(trial.paths))
    assert noted[0]["useful_s"] == pytest.approx(20, abs=1)
    assert fitting(other, 63, noted).fits(TrialFiles(trial.paths))


def test_a_worker_gives_an_allocation_back_in_which_nothing_fits(cli: Cli) -> None:
    built = Builder(cli.root / "digits-7f3a")
    trial = built.trial()
    built.worker(0, end="time")
    attempt(built, trial, start_s=600).end("preempted")
    paths = ExperimentPaths(built.paths.root)
    with journal.Writer(paths.worker(1, 0, 0).journal) as log:
        log.append("claimed", trial=1, attempt=1)
    now = time.time()
    here = Allocation("job_0", ("n1",), 1, end_at=now + 720.5)
    files.make_folder(paths.worker(1, 0, 1).root)
    WorkerClaim("job_0", "n1", 1, at=files.now()).write_once(paths.worker(1, 0, 1).claim)
    with journal.Writer(paths.worker(1, 0, 1).journal) as log:
        work = at_work(paths, log, here)
        work.remaining = work.fitting.time = Remaining(here.end_at, 2, now - 3000)
        assert work.work() == 85, "it comes back"
    end = WorkerEnd.read(work.me.end)
    assert end is not None and end.why == "time"
    assert len(trial.paths.attempts()) == 1
    line = timeline.passed_over(gather.gather(paths), 1)
    assert line is not None and line["worker"] == work.me.name
    said = " ".join(cli("explain", "digits").out.split())
    assert f"the trial waits for another allocation: worker {work.me.name} had 12 min left" in said
    assert "about 10 min to begin" in said
