"""``make bench-index``: what the index costs, made from nothing and brought up to date.

One small and one large experiment of records alone. The floor under a rebuild is to read and
check every line of every journal; the peer of an update is the rebuild that it spares. And what
one bad experiment costs a listing, for each way of being bad
(``tests/security/test_hostile_files.py``).
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP), str(TOP / "benchmarks")]

import results  # noqa: E402

from hpcdet.read.index import database  # noqa: E402
from hpcdet.read.lookup import all_experiments  # noqa: E402
from hpcdet.read.views import views  # noqa: E402
from hpcdet.store.folder.layout import ExperimentPaths  # noqa: E402
from hpcdet.store.fs import journal  # noqa: E402
from tests.builders import AttemptBuilder, Builder, at  # noqa: E402
from tests.security import test_hostile_files as hostile  # noqa: E402

RUNS = 3
SIZES = {"small": (4, 100), "large": (200, 1000)}
"""Trials, and reports of three metrics that each of them has made."""
GOALS_S = {
    "small": {"rebuild": 1.0, "update": 0.2, "nothing new": 0.1},
    "large": {"rebuild": 60.0, "update": 2.0, "nothing new": 1.0},
}


def experiment(root: Path, trials: int, reports: int) -> tuple[Builder, AttemptBuilder]:
    """An experiment, and an attempt of it that is still going on."""
    built = Builder(root)
    for number in range(trials):
        attempt = built.trial(hidden=number).attempt()
        lines = journal.read(attempt.paths.journal)
        text = b"".join(
            journal.encode(n, "metrics", _report(n, n % 10 == 0), at(n))
            for n in range(len(lines) + 1, len(lines) + 1 + reports)
        )
        with attempt.paths.journal.open("ab") as file:
            file.write(text)
        if number < trials - 1:
            attempt.end("completed")
    return built, attempt


def _report(step: int, validation: bool) -> dict[str, object]:
    names = ("validation_loss", "accuracy", "f1") if validation else ("loss", "lr", "grad_norm")
    return {
        "group": "validation" if validation else "training",
        "step": step,
        "metrics": {name: 1.0 / (step + place) for place, name in enumerate(names)},
        "units": {"batches": step, "records": 64 * step, "epochs": 0},
    }


def main() -> int:
    """Measure, print, write; exit 0 also where a goal was missed (the table says so)."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = str(Path(folder) / "cache")
        for size, (trials, reports) in SIZES.items():
            built, attempt = experiment(Path(folder) / f"{size}-0000", trials, reports)
            rows += _measure(size, built, attempt, reports)
        rows += _hostile(Path(folder))
    results.publish("index", rows)
    return 0


def _measure(size: str, built: Builder, attempt: AttemptBuilder, reports: int) -> list[results.Row]:
    paths = built.paths
    times: dict[str, list[float]] = {"floor": [], "rebuild": [], "update": [], "nothing new": []}
    journals = [one.journal for trial in paths.trials() for one in trial.attempts()]
    for run in range(1, RUNS + 1):
        times["floor"].append(_seconds(lambda: [journal.read(path) for path in journals]))
        times["rebuild"].append(_seconds(lambda: database.rebuild(paths)))
        with journal.Writer(attempt.paths.journal) as writer:
            writer.append("metrics", **_report(10 * (reports + run), True))
        times["update"].append(_seconds(lambda: database.update(paths)))
        times["nothing new"].append(_seconds(lambda: database.update(paths)))
    assert database.differences(paths) == []
    goals, rebuild = GOALS_S[size], times["rebuild"]
    about = f"{size} ({len(journals)} trials x {reports} reports)"
    return [
        results.row(f"rebuild, {about}", rebuild, "read all", times["floor"], goals["rebuild"]),
        *(
            results.row(f"{what}, {size}", times[what], "rebuild", rebuild, goals[what])
            for what in ("update", "nothing new")
        ),
    ]


def _hostile(folder: Path) -> list[results.Row]:
    """The dearest bad file of each kind, beside the same experiment with a good one."""
    good, attempt = experiment(folder / "good-0000", 1, 10)
    attempt.end("completed")
    floor = [_seconds(lambda: views.status(good.paths)) for _ in range(RUNS)]
    worst: dict[str, tuple[list[float], str]] = {}
    for name in hostile.READ_BY_STATUS:
        for harm in hostile.harms(name):
            made = hostile.harmed(good.paths.root, folder / "bad", name, harm)
            times = [_seconds(lambda: _look(ExperimentPaths(made))) for _ in range(RUNS)]  # noqa: B023
            kind = Path(name).suffix
            worst[kind] = max(worst.get(kind, ([0.0], "")), (sorted(times), harm.__name__))
            shutil.rmtree(made)
    return [
        results.row(f"one bad {kind} in a listing ({harm})", times, "a good one", floor, 0.1)
        for kind, (times, harm) in sorted(worst.items())
    ]


def _look(paths: ExperimentPaths) -> None:
    all_experiments.of_each([paths], views.status)


def _seconds(act: Callable[[], object]) -> float:
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


if __name__ == "__main__":
    sys.exit(main())
