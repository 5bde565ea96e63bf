"""No damage of any record ends a verb that reads with a traceback, or keeps it from ending.

``HPCDET_DAMAGED=N`` deals N of them, ``HPCDET_DAMAGED_SEED=S`` others.
"""

from __future__ import annotations

import random
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcdet.control.leader.daemon_registry import Daemon
from hpcdet.control.searcher_job import ChainStopped
from hpcdet.errors import IntegrityError
from hpcdet.search.api import codec
from hpcdet.store.cost import charges, cost_records
from hpcdet.store.decisions import outbox
from hpcdet.store.decisions.snapshots import Point, Snapshot, write
from hpcdet.store.folder import records
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import journal
from hpcdet.store.fs.json_record import JsonRecord
from hpcdet.store.trials import history
from hpcdet.units import Length
from tests import experiments as x
from tests.builders import at, put
from tests.damaging import damage
from tests.dose import DAMAGED, DAMAGED_SEED
from tests.security.test_hostile_files import run

READING = (
    *("ls", "status", "status EXP", "status EXP/1", "status EXP -o json", "ls --trials -o json"),
    *("show EXP", "show EXP/2", "show EXP/1.1 -o json", "show EXP -o csv", "config show EXP"),
    *("events EXP", "events EXP --gantt", "events EXP -o json", "explain EXP", "explain EXP/2"),
    *("metrics EXP", "metrics EXP --group timing", "metrics EXP --plot", "metrics EXP/1 --all"),
    *("metrics EXP --last --x wall", "metrics EXP --best -o csv", "best EXP", "best EXP -o json"),
    *("logs EXP/1", "logs EXP/2 --errors", "logs EXP/2 --attempt 1 --timestamps", "eff", "eff EXP"),
    *("eff EXP --waste", "eff EXP --suggest", "schedule EXP/1", "schedule EXP --config"),
    *("ckpt ls EXP", "ckpt ls EXP -o json", "ckpt digest EXP/1", "report EXP -o OUT/report.html"),
    *("index rebuild EXP", "index update", "index check EXP", "index snapshot EXP OUT/index"),
    *("searcher status EXP", "searcher replay EXP", "plan OUT/c.yaml"),
)
SLOW = (
    *(
        "ckpt verify EXP/1 --quick",
        "ckpt export EXP/1 -o OUT/weights.h5",
        "ckpt get EXP/1 -o OUT/copy",
    ),
    *("archive EXP --out OUT/all.tar.gz", "searcher replay EXP --verify"),
    "wait EXP --timeout 1",
)
"""They take a second each: of these one at most."""
BATCH = 20
"""Damaged experiments that are read by one process."""
DOCUMENTED = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}


def unpacked(root: Path) -> None:
    """Put what was packed back to where it was."""
    for archive in sorted(root.rglob("history-*.zip")):
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(archive.parent)
        archive.unlink()


def add_the_rest(paths: ExperimentPaths) -> None:
    """Records of kinds that no undisturbed experiment of the local scheduler has."""
    trial, attempt = paths.trial(2), paths.trial(2).attempt(1)
    job = paths.submissions()[-1]
    intent = records.Intent(job, "x-1", "hpcdet:x:1-ab", 1, 1, 1, watches="12", at=at(1))
    charge = {"worker": "0001-0000.0", "job": "12_0", "slots": 1, "start": 1.0, "end": 9.0}
    rest: dict[Path, JsonRecord] = {
        paths.sentinel(job): intent,
        paths.sentinel_submitted(job): records.Submitted("13", "slurm", "", at(2)),
        paths.messages / "0123456789abcdef.json": outbox.Message(
            "ab12", "end", "end", "COMPLETED", "x", ["webhook", "email"], at(9)
        ),
        paths.messages / "0123456789abcdef.email.failed.json": outbox.Unsent("no", 2, "n1", at(9)),
        paths.stuck(job): records.Stuck("nobody is left", "hpcdet resume x", at(9)),
        paths.charges(1): cost_records.Charges([{**charge, "slot_s": 8.0}], [1], at(9)),
        paths.limits(1): cost_records.RunLimits(2, 10.0, None, [60], 1, at(3)),
        paths.command(91): records.Command(
            "set", 0, {"values": {"worker.idle_s": 5}}, "ada", at(4)
        ),
        paths.command(92): records.Command("resume", 1, {"checkpoint": "00000010.g1"}, "a", at(4)),
        paths.reopened(1): records.Reopened(91, "ada", at(5)),
        paths.daemon("elsewhere"): Daemon(1, 2, "boot", at(5)),
        paths.root / "searcher" / "stopped-1.json": ChainStopped(at(6)),
        paths.worker(1, 0, 0).final: records.Final(1, at(7)),
        trial.control(97): records.Control("run", Length("batches", 60), rewinds=[["a.g1", 1]]),
        attempt.root / "rendezvous.json": records.Final(0, at(1)),
    }
    for path, record in rest.items():
        put(path, record)
    shown = history.Past("old-0001", 1, {"x": 0.5}, [[30, 0.25]])
    history.History([history.HistorySource("old-0001", 1, {"failed": 2})], [shown]).write(
        paths.history
    )
    write(paths, Snapshot(Point(1, 3, 300), {"a": [1]}), {"program": "x"})
    (trial.root / "pinned").mkdir()
    with journal.Writer(attempt.profile(1)) as writer:
        writer.append("profile", rank=1, seconds={"data": 1.0}, steps=3)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """A real search of which a trial has failed: as it ended, unpacked, and not ended."""
    top = tmp_path_factory.mktemp("whole")
    root, model = top / "root", top / "model"
    model.mkdir(mode=0o700)
    (model / "c.yaml").write_text("a: 1\n")
    values = x.config(
        *(30, 3),
        data={"every": 10, "crash": {"2": [15, 9]}},
        max_restarts=1,
        budget={"slot_hours": 10},
        searcher={"name": "random", "max_concurrent_trials": 2},
    )
    with x.local_jobs(top / "state"):
        paths = x.submit(values, root, x.local_site(python=x.fake_python(top)), model)
        x.run_to_end(paths)
        x.until(lambda: all((each.root / "end.json").exists() for each in paths.workers()))
    ended, loose, open_ = top / "ended", top / "loose", top / "open"
    paths.root.rename(ended)  # nobody is its copy
    shutil.copytree(ended, loose)
    unpacked(loose)
    add_the_rest(ExperimentPaths(loose))
    shutil.copytree(loose, open_)
    (open_ / "closed.json").unlink()
    (open_ / "reopened-1.json").unlink()
    return {"ended": ended, "loose": loose, "open": open_}  # type: ignore[return-value]


def kinds(folder: Path) -> dict[str, list[str]]:
    """Files that hpcdet reads, by what they are: of many of a kind one is damaged at a time."""
    found: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and not name.startswith(("code/", "scripts/")):
            same = "".join("0" if sign.isdigit() else sign for sign in name)
            found.setdefault(same, []).append(name)
    return found


def test_every_kind_of_record_is_damaged(whole: dict[str, Path]) -> None:
    there = {name.rpartition("/")[2] for name in kinds(whole["loose"])}
    assert {"experiment.yaml", "site.yaml", "trial.json", "claim.json", "verdict.json"} <= there


@pytest.mark.parametrize("first", range(0, DAMAGED, BATCH))
def test_damaged_records_end_no_verb_that_reads(
    whole: dict[str, Path], tmp_path: Path, first: int
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    calls: list[tuple[str, list[str]]] = []
    for number in range(first, min(first + BATCH, DAMAGED)):
        draw = random.Random(f"{DAMAGED_SEED} {number}")
        state = draw.choice(["ended", "loose", "loose", "open"])
        groups = kinds(whole[state])
        name = draw.choice(groups[draw.choice(sorted(groups))])
        one = tmp_path / str(number) / f"x-{number:04d}"
        shutil.copytree(whole[state], one)
        harm = f"{number} ({state}) {damage(one, name, draw)}"
        for verb in [*draw.sample(READING, 5), *draw.sample(SLOW, draw.random() < 0.1)]:
            words = verb.replace("OUT/", f"{out}/{number}-").replace("EXP", one.name).split()
            calls.append((harm, [*words, "-C", str(one.parent), "--debug"]))
    answers = run(tmp_path / "root", [call for _, call in calls])
    failed = [
        f"{harm}\n  hpcdet {' '.join(call)}: {rc} {err[-3000:]}"
        for (harm, call), (rc, _, err, _) in zip(calls, answers, strict=True)
        if rc not in DOCUMENTED or "UNEXPECTED" in err or "bug" in err
    ]
    assert not failed, f"{len(failed)} of {len(calls)}:\n" + "\n".join(failed)


@pytest.mark.parametrize(
    "change", [{"worker": [None]}, {"slot_s": "NaN"}, {"start": None}, {"job": 5}]
)
def test_a_charge_of_another_shape_is_refused_by_name(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    paths = ExperimentPaths(tmp_path)
    charge = {"worker": "w", "job": "1", "slots": 1, "start": 1.0, "end": 9.0, "slot_s": 8.0}
    put(paths.charges(1), cost_records.Charges([charge], [1], at(9)))
    assert len(charges.Book(paths).read()) == 1
    put(paths.charges(1), cost_records.Charges([{**charge, **change}], [1], at(9)))
    with pytest.raises(IntegrityError, match=f"allocations: {next(iter(change))} is"):
        charges.Book(paths).read()


def test_a_record_whose_time_is_none_is_refused(tmp_path: Path) -> None:
    for time in ("../../etc", "2026-01-01", "0001-01-01T00:00:00Z"):
        put(tmp_path / "end.json", records.Final(1, time))
        with pytest.raises(IntegrityError, match="which is no time"):
            records.Final.read(tmp_path / "end.json")


def test_an_event_of_another_shape_is_refused_by_name() -> None:
    event = {"kind": "report", "trial": 1, "length": {"batches": 10}, "metrics": {"loss": 1.0}}
    assert codec.decode_event(event) is not None
    with pytest.raises(IntegrityError, match="no valid 'metrics'"):
        codec.decode_event({**event, "metrics": [1.0]})
