"""``make bench-start``: what ranks cost until their first step is over, beside a loop by hand.

Fresh processes, in turn: a rank of hpcdet (``python -m hpcdet.attempt``), a script that trains the
same model with torch's ``DistributedDataParallel`` over gloo, and ``import torch`` alone, the
floor. The script runs once more with torch's compiler put off as ours does. A figure is the median
of the rounds: processor time of the process, and the modules that are loaded. Once more each, and
a library notes the files that are opened, which is what a shared file system is asked for.

Then one worker runs trial after trial of a single step, its ranks forked (``worker.warm: auto``),
and another one does so with ranks that start anew: from a trial's claim to its first step, and the
rank's processor time until then. The first trial of each, for which the worker imports, is a row of
its own, from the worker's start.

More parts: ``submit`` (``start.submissions``), 64 trials of five seconds beside Ray Tune and
submitit (``start.many_trials``), and a slow metadata server (``start.storm``).
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP), str(TOP / "benchmarks")]

import results  # noqa: E402

from benchmarks.start import (  # noqa: E402
    many_trials,
    opened_files,
    storm,
    submissions,
    worker_trials,
)
from benchmarks.start.models import BY_HAND, ONE, SAY, TRIAL  # noqa: E402
from hpcdet.jobs.create import provenance  # noqa: E402
from hpcdet.store.folder.layout import ExperimentPaths  # noqa: E402
from hpcdet.store.folder.records import Claim  # noqa: E402
from hpcdet.store.fs import files  # noqa: E402
from tests import ranks  # noqa: E402

ROUNDS, QUICK = 9, 2
SCRIPTS = {
    "by hand": BY_HAND,
    "by hand, no compiler": (
        f"from hpcdet.process import late_compiler\nlate_compiler.put_off()\n{BY_HAND}"
    ),
    "import torch": f"{SAY}import torch\nsay()",
}
TORCHS = "by hand, no compiler"
MORE_S, MORE_FILES = 0.15, 200
"""The most that ours may use and open beyond torch's own."""
MOST_S = 0.5
"""The most that a later trial of a worker may take from its claim, or use of the processor."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a little of it, to see that it works")
    parser.add_argument("--trials", type=int, default=64, help='of the part "many trials"')
    parser.add_argument("--part", choices=PARTS, action="append", help="only this one")
    given = parser.parse_args(argv)
    parts = given.part or list(PARTS)
    name = "start-quick" if given.quick else "start"
    print(f"{'':<66}{'ours':>9}{'peer':>9}{'ratio':>8}  peer")
    for part in parts:
        rows = []
        with tempfile.TemporaryDirectory() as folder:
            for row in PARTS[part](given, Path(folder)):
                rows.append({"part": part, **row})
                print(f"{row['what']:<66}{row['ours']:>9.2f}{row['peer']:>9.2f}", end="")
                print(f"{row['ratio']:>8.3f}  {row['peer_name']}")
        others = [row for row in results.written(name) if row["part"] != part]
        results.write(name, [*others, *rows])
    return 0


def _first_steps(given: argparse.Namespace, place: Path) -> Iterator[results.Row]:
    rounds = QUICK if given.quick else ROUNDS
    compileall.compile_dir(TOP / "hpcdet", quiet=1)  # as installers do; ranks write none
    told: dict[str, list[dict[str, float]]] = {"hpcdet": [], **{peer: [] for peer in SCRIPTS}}
    for number in range(rounds + 1):
        for name in told if number % 2 else reversed(told):
            with tempfile.TemporaryDirectory() as folder:
                found = _process(name, Path(folder))
            if number:  # the first round brings files into memory
                told[name].append(found)
    for peer in SCRIPTS:
        for key in ("cpu_s", "modules"):
            yield _row(told, peer, key)
    used = [statistics.median(one["cpu_s"] for one in told[who]) for who in ("hpcdet", TORCHS)]
    yield _beyond("processor time beyond, s", "s", used[0] - used[1], used[1], MORE_S, rounds)
    ours, theirs = (_opened(name, place / str(n)) for n, name in enumerate(("hpcdet", TORCHS)))
    yield _beyond("files beyond", "1", len(ours - theirs), len(theirs), MORE_FILES, 1)
    workers = {warm: _worker(warm, rounds, place / warm) for warm in ("auto", "off")}
    yield from _worker_rows(workers["auto"], workers["off"])


def _submissions(given: argparse.Namespace, place: Path) -> Iterator[results.Row]:
    yield from submissions.rows(1 if given.quick else 5, place)


def _many_trials(given: argparse.Namespace, place: Path) -> Iterator[results.Row]:
    trials, seconds = (4, 1.0) if given.quick else (given.trials, 5.0)
    yield from many_trials.rows(trials, seconds, place, install=not given.quick)


def _storm(given: argparse.Namespace, place: Path) -> Iterator[results.Row]:
    yield from storm.rows(*((2, 2, 0.0) if given.quick else (8, 4, storm.DELAY_MS)), place)


PARTS = {
    "first steps": _first_steps,
    "submit": _submissions,
    "many trials": _many_trials,
    "storm": _storm,
}


def _process(name: str, folder: Path, **more: str) -> dict[str, float]:
    """What a fresh process says after its first step.

    Args:
        more: of its environment.
    """
    says = folder / "says.json"
    says_more = f"{SAY}{opened_files.LOOK}"
    if name == "hpcdet":
        settings = {"entrypoint": "model_def:StartTrial", "until": 1}
        trial = ranks.experiment(
            folder / "EXP",
            code=TRIAL.replace(SAY, says_more),
            hparams={"global_batch_size": 8},
            **settings,
        )
        record = {"code": {"model_def.py": ""}, "packages": provenance.packages()}
        files.write_once(ExperimentPaths(folder / "EXP").provenance, files.canonical(record))
        argv = ["-Pm", "hpcdet.attempt", str(folder / "EXP"), "1", "1"]
        Claim("0001-0000.0", "here").write_once(trial.attempt(1).claim)
    else:
        argv = ["-c", SCRIPTS[name].replace(SAY, says_more)]
    environment = {**os.environ, "START_SAYS": str(says), "PYTHONPATH": str(TOP), **ONE, **more}
    ours = name == "hpcdet"  # torch's process group sometimes aborts at the end of a script
    subprocess.run([sys.executable, *argv], env=environment, check=ours, capture_output=True)
    [said] = (one for one in folder.glob("says.json*") if one.suffix != ".store")
    found: dict[str, float] = json.loads(said.read_text())
    return found


def _opened(name: str, folder: Path) -> set[Path]:
    """The files that a fresh process opens until its first step."""
    folder.mkdir()
    _process(name, folder, **opened_files.variables(folder))
    return opened_files.of(folder)


def _worker(warm: str, trials: int, folder: Path) -> list[dict[str, float]]:
    """What each trial of one worker says after its first step; its time since the claim, too."""
    variables = {"START_SAYS": str(folder / "says")}
    with worker_trials.ended(TRIAL, warm, trials + 1, folder, variables) as paths:
        return [
            {**json.loads((folder / f"says{number}").read_text()), "wall_s": wall}
            for number, wall in enumerate(worker_trials.walls(paths), 1)
        ]


def _worker_rows(
    warm: list[dict[str, float]], cold: list[dict[str, float]]
) -> Iterator[results.Row]:
    yield _pair("first trial of a worker, s", "s", warm[:1], cold[:1], "wall_s")
    yield _pair("later trials from their claim, s", "s", warm[1:], cold[1:], "wall_s", 0.15)
    yield _pair("later trials, processor time, s", "s", warm[1:], cold[1:], "cpu_s", 0.15)


def _pair(
    what: str,
    unit: str,
    warm: list[dict[str, float]],
    cold: list[dict[str, float]],
    key: str,
    goal: float | None = None,
) -> results.Row:
    ours, other = (statistics.median(one[key] for one in each) for each in (warm, cold))
    return {
        "what": what,
        "unit": unit,
        "ours": round(ours, 3),
        "peer": round(other, 3),
        "peer_name": "ranks that start anew",
        "ratio": round(ours / other, 3),
        "goal": goal,
        "met": None if goal is None else ours / other <= goal and ours <= MOST_S,
        "runs": len(warm),
    }


def _beyond(what: str, unit: str, ours: float, peer: float, most: float, runs: int) -> results.Row:
    return {
        "what": what,
        "unit": unit,
        "ours": round(ours, 3),
        "peer": round(peer, 3),
        "peer_name": TORCHS,
        "ratio": round(ours / peer, 3),
        "goal": most,
        "met": ours <= most,
        "runs": runs,
    }


def _row(told: dict[str, list[dict[str, float]]], peer: str, key: str) -> results.Row:
    ours, other = (statistics.median(one[key] for one in told[who]) for who in ("hpcdet", peer))
    return {
        "what": "processor time, s" if key == "cpu_s" else "modules",
        "unit": "s" if key == "cpu_s" else "1",
        "ours": round(ours, 3),
        "peer": round(other, 3),
        "peer_name": peer,
        "ratio": round(ours / other, 3),
        "goal": None,
        "met": None,
        "runs": len(told[peer]),
    }


if __name__ == "__main__":
    sys.exit(main())
