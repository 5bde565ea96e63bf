"""``make bench-read``: what it costs to say how an experiment stands, by time and memory.

A large experiment of records alone: 2,000 trials of 500 validations each. The floor under the first
look is to read and check every line of every journal once and to keep none. Each figure is of a
process of its own; the second look is one more in the same process, as ``status -w`` does.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP), str(TOP / "benchmarks")]

import results  # noqa: E402

from hpcdet.read.experiment.gather import Memory  # noqa: E402
from hpcdet.read.views import views  # noqa: E402
from hpcdet.store.folder.layout import ExperimentPaths  # noqa: E402
from hpcdet.store.fs import journal  # noqa: E402
from tests.builders import Builder, at  # noqa: E402

TRIALS, REPORTS, RUNS = 2000, 500, 3
FLOORS, MEMORY_MB, AGAIN_S = 2.0, 200.0, 0.5
"""Goals: the first look in floors, its memory, and the second look in seconds."""

FOLDERS, NEWEST = 300, 10


def experiment(root: Path, trials: int, reports: int) -> ExperimentPaths:
    """An experiment whose last trial still runs."""
    built, made = Builder(root), time.time() - 3600
    lines = b""
    for number in range(trials):
        attempt = built.trial(hidden=number).attempt()
        if not lines:
            first = len(journal.read(attempt.paths.journal)) + 1
            numbers = range(first, first + reports)
            lines = b"".join(journal.encode(n, "metrics", _report(n), at(n)) for n in numbers)
        with attempt.paths.journal.open("ab") as file:
            file.write(lines)
        if number < trials - 1:
            attempt.end("completed")
    os.sync()
    for place, _, names in os.walk(
        root
    ):  # what has just changed is read once more by the next look
        for path in (place, *(os.path.join(place, name) for name in names)):
            os.utime(path, (made, made))
    return built.paths


def _report(step: int) -> dict[str, object]:
    return {
        "group": "validation",
        "step": step,
        "metrics": {"validation_loss": 1.0 / step, "accuracy": 1.0 - 1.0 / step},
        "units": {"batches": step, "records": 64 * step, "epochs": 0},
    }


# -- in a process of its own -------------------------------------------------------------------


def _floor(paths: ExperimentPaths) -> list[float]:
    begin = time.perf_counter()
    for trial in paths.trials():
        for attempt in trial.attempts():
            journal.read(attempt.journal)
    return [time.perf_counter() - begin]


def _status(paths: ExperimentPaths) -> list[float]:
    memory, found = Memory(paths), []
    for _ in range(2):
        begin = time.perf_counter()
        views.status(memory.look())
        found.append(time.perf_counter() - begin)
    return found


def _report_page(paths: ExperimentPaths) -> list[float]:
    from hpcdet.read.report import write

    begin = time.perf_counter()
    write(paths, Path(tempfile.gettempdir()) / f"report-{os.getpid()}.html").unlink()
    return [time.perf_counter() - begin]


_MEASURED = {"floor": _floor, "status": _status, "report": _report_page}


def _measure(paths: ExperimentPaths) -> dict[str, dict[str, list[float]]]:
    """Measure each in turn, some times."""
    found = [{what: _once(what, paths) for what in _MEASURED} for _ in range(RUNS)]
    return {
        what: {key: [one[what][key] for one in found] for key in found[0][what]}
        for what in _MEASURED
    }


def _once(what: str, paths: ExperimentPaths) -> dict[str, float]:
    command = [sys.executable, __file__, "--only", what, str(paths.root)]
    made = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = json.loads(made.stdout)
    return found


def _listing(root: Path) -> list[float]:
    """Return the seconds of ``ls`` over many experiments, of all of them and of the newest."""
    command = [sys.executable, "-m", "hpcdet", "-C", str(root), "ls", "-o", "id"]
    found = []
    for more in ([], ["--limit", str(NEWEST)]):
        begin = time.perf_counter()
        subprocess.run([*command, *more], stdout=subprocess.DEVNULL, check=True)
        found.append(time.perf_counter() - begin)
    return found


def main(argv: list[str]) -> int:
    """Measure, print, write; exit 0 also where a goal was missed (the table says so)."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=_MEASURED)
    parser.add_argument("experiment", nargs="?", type=Path)
    given = parser.parse_args(argv)
    if given.only:
        taken = _MEASURED[given.only](ExperimentPaths(given.experiment))
        high = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        keys = ("seconds", "again")
        print(json.dumps({**dict(zip(keys, taken, strict=False)), "memory": high}))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        paths = experiment(Path(folder) / "large-0000", TRIALS, REPORTS)
        found = _measure(paths)
        many = Path(folder) / "many"
        for number in range(FOLDERS):
            experiment(many / f"small-{number:04d}", 4, 20)
        listed = [_listing(many) for _ in range(RUNS)]
    results.publish("read", _rows(**found, listed=listed))
    return 0


def _rows(
    floor: dict[str, list[float]],
    status: dict[str, list[float]],
    report: dict[str, list[float]],
    listed: list[list[float]],
) -> list[results.Row]:
    about = f"{TRIALS} trials x {REPORTS} reports"
    first, base = status["seconds"], floor["seconds"]
    rows = [
        results.row(f"status, {about}", first, "read all", base, FLOORS * statistics.median(base)),
        results.row("the next look of status -w", status["again"], "the first", first, AGAIN_S),
        results.row(f"report, {about}", report["seconds"], "status", first, 60.0),
        results.row(
            f"ls --limit {NEWEST} of {FOLDERS} experiments",
            [newest for _, newest in listed],
            "ls of all",
            [everything for everything, _ in listed],
            1.0,
        ),
    ]
    for row, found in zip(rows[::2], (status, report), strict=False):
        row["memory_mb"] = round(statistics.median(found["memory"]))
        row["what"] += f", {row['memory_mb']} MB"
    rows[0]["met"] = rows[0]["met"] and rows[0]["memory_mb"] <= MEMORY_MB
    return rows


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
