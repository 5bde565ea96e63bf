"""``make bench-read``: what it costs to read many trials and many experiments.

One large experiment of records alone, and a root of many small ones. Figures are processor seconds
and peak memory of processes of their own, imports included, but the pages' and the server's, which
are seconds by the clock (``live_view``): on a machine with other work they say little, and the
page's own processor seconds stand beside them. The floor is to read and check every
line of every journal once, and to keep none. *Cold*: nothing is kept of what was read before
(``read.experiment.kept``), nor left in folders; *left*: rows were left there by what ended the
experiments (``read.left_row``); *warm*: the same command again. Peers read the same values:
TensorBoard from event files, MLflow from its own store; one that is not installed is named as
absent.

``DOSE=full`` takes 2,000 trials of 500 reports and 10,000 experiments; the default is a tenth or
less of it, whose goals are those of the full dose. ``RUNS`` is how often each is measured.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP), str(TOP / "benchmarks")]

import results  # noqa: E402

from hpcdet.read import catalog  # noqa: E402
from hpcdet.read.lookup import find  # noqa: E402
from hpcdet.store.folder.layout import ExperimentPaths  # noqa: E402
from hpcdet.store.fs import journal  # noqa: E402
from tests.builders import Builder, at  # noqa: E402

FULL = os.environ.get("DOSE") == "full"
TRIALS, REPORTS, EXPERIMENTS = (2000, 500, 10_000) if FULL else (200, 500, 500)
LISTED = 10_000 if FULL else 1000
SMALL_TRIALS, SMALL_REPORTS = 2, 10
ASKED = 40
RUNS = int(os.environ.get("RUNS", "1" if FULL else "3"))
HPCDET = [sys.executable, "-m", "hpcdet"]
PEERS = ("tensorboard", "mlflow")


def experiment(root: Path, trials: int, reports: int) -> ExperimentPaths:
    """An experiment whose last trial still runs, with so many reports of each."""
    built = Builder(root)
    built.job()
    built.worker()
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
    return built.paths


def many(root: Path, count: int) -> None:
    """So many experiments that have ended."""
    built = Builder(root / "small-00000")
    built.job()
    built.worker(end="idle")
    for number in range(SMALL_TRIALS):
        attempt = built.trial(hidden=number).attempt()
        for step in range(1, SMALL_REPORTS + 1):
            attempt.metrics("validation", step, validation_loss=1.0 / step)
        attempt.end("completed")
    built.decide("state", state="COMPLETED", why="", by="")
    built.close()
    for number in range(1, count):
        shutil.copytree(built.paths.root, root / f"small-{number:05d}")


def _report(step: int) -> dict[str, object]:
    return {
        "group": "validation",
        "step": step,
        "metrics": {"validation_loss": 1.0 / step, "accuracy": 1.0 - 1.0 / step},
        "units": {"batches": step, "records": 64 * step, "epochs": 0},
    }


def _settle(root: Path) -> None:
    """Let everything look an hour old: what has just changed is read once more by the next look."""
    made = time.time() - 3600
    for place, _, names in os.walk(root):
        for path in (place, *(os.path.join(place, name) for name in names)):
            os.utime(path, (made, made))


@dataclass
class Cost:
    """Processor seconds and peak memory in MB of processes that do the same."""

    seconds: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)

    def run(self, argv: Sequence[str], cache: Path) -> None:
        environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "PYTHONPATH": str(TOP)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        environment["PYTHONPYCACHEPREFIX"] = str(cache.parent / "compiled")
        measured = [sys.executable, "-S", "-c", _MEASURE, *argv]
        made = subprocess.run(measured, env=environment, stdout=subprocess.PIPE, check=True)
        seconds, kilobytes = made.stdout.split()
        self.seconds.append(float(seconds))
        self.memory.append(int(kilobytes) / 1024)


_MEASURE = """
import os, sys
quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=quiet)
_, status, used = os.wait4(pid, 0)
print(used.ru_utime + used.ru_stime, used.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""
"""A small process that starts another one: the peak of a process is at least its parent's."""


# -- what runs in a process of its own -----------------------------------------------------------


def _floor(place: Path) -> None:
    for trial in ExperimentPaths(place).trials():
        for attempt in trial.attempts():
            journal.read(attempt.journal)


def _tensorboard(place: Path) -> None:
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer

    multiplexer = EventMultiplexer(size_guidance={"scalars": 0, "tensors": 0})
    multiplexer.AddRunsFromDirectory(str(place))
    multiplexer.Reload()


def _mlflow(place: Path) -> None:
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{place}/mlflow.sqlite")
    found = mlflow.search_runs(search_all_experiments=True, max_results=50_000)
    assert len(found) == TRIALS


_ONLY = {"floor": _floor, "tensorboard": _tensorboard, "mlflow": _mlflow}


def _only(what: str, place: Path) -> list[str]:
    return [sys.executable, __file__, "--only", what, str(place)]


# -- the data of peers ---------------------------------------------------------------------------


def _for_tensorboard(paths: ExperimentPaths, folder: Path) -> None:
    from hpcdet.interop.tensorboard import EventFiles

    EventFiles(folder, [str(paths.root)]).update()


def _for_mlflow(paths: ExperimentPaths, folder: Path) -> None:
    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/mlflow.sqlite")
    for trial in paths.trials():
        run = client.create_run("0").info.run_id
        values = [
            Metric(name, value, 0, line["step"])
            for attempt in trial.attempts()
            for line in journal.read(attempt.journal)
            if line["kind"] == "metrics"
            for name, value in line["metrics"].items()
        ]
        for begin in range(0, len(values), 1000):
            client.log_batch(run, metrics=values[begin : begin + 1000])


_DATA = {"tensorboard": _for_tensorboard, "mlflow": _for_mlflow}


# -- measuring -----------------------------------------------------------------------------------


def _measure(paths: ExperimentPaths, root: Path, folder: Path) -> dict[str, Cost]:
    """Measure each in turn, some times; ``again`` is after the same command in the same cache."""
    peers = {}
    for name in PEERS:
        if importlib.util.find_spec(name) is not None:
            peers[name] = folder / name
            peers[name].mkdir()
            _DATA[name](paths, peers[name])
    in_root = [*HPCDET, "-C", str(root)]
    of_large = [*HPCDET, "-C", str(paths.root.parent), "status", paths.id]
    found: dict[str, Cost] = {}
    for argv in ([*HPCDET, "--help"], [*of_large, "--help"]):
        Cost().run(argv, folder / "cache")  # modules are compiled once
    for run in range(RUNS):
        cache, page = folder / f"cache-{run}", str(folder / "report.html")
        commands = {
            "help": [*HPCDET, "--help"],
            "floor": _only("floor", paths.root),
            "status cold": of_large,
            "status warm": of_large,
            "report": [*HPCDET, "-C", str(paths.root.parent), "report", paths.id, "-o", page],
            "ls cold": [*in_root, "ls"],
            "ls warm": [*in_root, "ls"],
            "ls --limit 10": [*in_root, "ls", "--limit", "10"],
            **{name: _only(name, place) for name, place in peers.items()},
        }
        for what, argv in commands.items():
            found.setdefault(what, Cost()).run(argv, cache)
    for ended in find.experiments(root):
        catalog.leave_row(ended)
    for run in range(RUNS):
        found.setdefault("ls left", Cost()).run([*in_root, "ls"], folder / f"cache-left-{run}")
    return found


def _rows(found: dict[str, Cost]) -> list[results.Row]:
    floor = found["floor"].seconds
    base = statistics.median(floor)
    large, small = f"{TRIALS} trials x {REPORTS}", f"{EXPERIMENTS} experiments"
    goals: list[tuple[str, str, str, str, float, float]] = [
        ("help", "--help", "read all", "floor", 0.2, 60),
        ("status cold", f"status, cold, {large}", "read all", "floor", 2 * base, 200),
        ("status warm", f"status, warm, {large}", "read all", "floor", 0.5, 200),
        ("report", f"report, {large}", "read all", "floor", 10.0, 300),
        ("ls cold", f"ls, cold, {small}", "left", "ls left", 15.0, 200),
        ("ls left", f"ls, cold, rows left, {small}", "none left", "ls cold", 15.0, 200),
        ("ls warm", f"ls, warm, {small}", "cold", "ls cold", 1.0, 200),
        ("ls --limit 10", f"ls --limit 10, warm, {small}", "all of them", "ls warm", 1.0, 200),
    ]
    rows = []
    for what, about, peer_name, peer, seconds, memory in goals:
        ours = found[what]
        row = results.row(about, ours.seconds, peer_name, found[peer].seconds, round(seconds, 2))
        rows.append(_with_memory(row, ours, memory))
    for name in PEERS:
        if (peer_cost := found.get(name)) is None:
            print(f"{name} is absent: it is not installed here")
            continue
        ours = found["status cold"]
        row = results.row(
            f"{name} beside status, {large}", ours.seconds, name, peer_cost.seconds, 0
        )
        row["goal"], row["met"] = row["peer"], row["ours"] <= row["peer"]
        rows.append(_with_memory(row, ours, max(peer_cost.memory)))
    return rows


def _page_rows(folder: Path, large: ExperimentPaths) -> list[results.Row]:
    """Measure pages from their files; ``peer``: the processor seconds of the same pages."""
    import live_view  # not where the floor is measured, as it would count its imports

    from hpcdet.read import report

    if not live_view.browser_is_here():
        print("chromium and chromium-driver are absent: pages are not measured")
        return []
    listed = experiment(folder / "listed-0000", LISTED, 1)
    _settle(listed.root)
    rows = []
    for paths, about in ((large, f"{TRIALS} trials x {REPORTS}"), (listed, f"{LISTED} trials")):
        page = report.write(paths, folder / f"{paths.id}.html")
        cost = live_view.drawn(page, RUNS)
        megabytes = page.stat().st_size / 1e6
        for what, seconds, goal in (
            ("its list to be sorted and filtered", cost.listed, 1.0),
            ("all of it drawn", cost.ready, 3.0),
        ):
            said = f"report of {about}, {megabytes:.1f} MB, in Chromium: {what}"
            row = results.row(said, seconds, "processor, all", cost.processor, goal)
            rows.append({**row, "megabytes": megabytes, "met": row["met"] and megabytes <= 10})
    seconds = live_view.news(folder / "news")
    said = "from a metric's record until the page that shows it is drawn"
    return [*rows, results.row(said, seconds, "it asks every", [5.0], 7.0)]


def _server_rows(paths: ExperimentPaths, cache: Path) -> list[results.Row]:
    """Measure the server on the large experiment; ``peer``: half of the answers, not 95 of 100."""
    import live_view

    cost = live_view.served(paths.root.parent, paths.id, cache, ASKED)
    rows = []
    for what, seconds in cost.p95().items():
        row = results.row(f"95 of 100 answers, {what}", [seconds], "half", cost.answers[what], 0.15)
        rows.append({**row, "runs": ASKED})
    idle = results.row("server without requests, a second", [cost.idle], "a core", [1.0], 0.01)
    return [*rows, _with_memory(idle, Cost(memory=[cost.memory]), 300)]


def _with_memory(row: results.Row, cost: Cost, most: float) -> results.Row:
    high: Any = round(max(cost.memory))
    met = row["met"] and high <= most
    return {**row, "what": f"{row['what']}, {high} MB", "memory_mb": high, "met": met}


def main(argv: list[str]) -> int:
    """Measure, print, write; exit 0 also where a goal was missed (the table says so)."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=_ONLY)
    parser.add_argument("place", nargs="?", type=Path)
    given = parser.parse_args(argv)
    if given.only:
        _ONLY[given.only](given.place)
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = experiment(folder / "large-0000", TRIALS, REPORTS)
        many(folder / "root", EXPERIMENTS)
        os.sync()
        for place in (paths.root, folder / "root"):
            _settle(place)
        found = _measure(paths, folder / "root", folder)
        rows = [*_rows(found), *_page_rows(folder, paths), *_server_rows(paths, folder / "cache-0")]
    results.publish("read", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
