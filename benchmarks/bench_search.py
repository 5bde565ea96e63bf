"""``make bench-search``: our search methods beside Optuna, Ray Tune, Syne Tune and baselines.

(a) what a decision costs, (b) what a suggestion costs, (c) all scheduling rules on simulated
clusters over the same random configurations, (d) real networks on bundled data, (e) the
simulator against real searches on the private Slurm, (f) samplers on simulated clusters, (g) what
Hyperband's authors claim, where they claim it, (h) models of hyperparameters on tables of real
learning curves (``make bench-search-tables`` builds them beforehand). Peers live in a virtual
environment of their own under ``~/.cache/hpcdet-bench``; their decision rules are driven without a
cluster. ``--part`` runs some of the parts, ``--quick`` is a smoke run.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP), str(TOP / "benchmarks")]

import processes  # noqa: E402
import results  # noqa: E402

PEERS = (
    "optuna>=5,<6",
    "ray[tune]==2.60.*",
    "scikit-learn",
    "numpy",
    "pandas",
    "pyyaml",
    "statsmodels",
    "sortedcontainers",
    "dill",
    "blake3",
)
ALONE = ("syne-tune==0.16.*", "xgboost")
"""Without what they pull in: gigabytes for accelerators that nothing here uses."""

Row = dict[str, Any]


def peers_python() -> Path:
    """The interpreter of the peers' environment, which is made if it is not there."""
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "hpcdet-bench"
    folder = home / "search-venv"
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    needed = "import syne_tune, optuna, ray, sklearn, blake3, scipy, statsmodels"
    missing = subprocess.run([python, "-c", needed], check=False)
    pip = [str(python), "-m", "pip", "install", "-q"]
    wanted = ([*pip, *PEERS], [*pip, "--no-deps", *ALONE]) if missing.returncode else ()
    if any(subprocess.run(argv, check=False).returncode for argv in wanted):
        sys.exit(f"the peers cannot be installed into {folder}; --part b and e need none of them")
    return python


def rows_of(python: Path, part: str, quick: bool) -> list[Row]:
    """Run a part beside the peers."""
    argv = [str(python), "-m", "benchmarks.search", part, *(["--quick"] if quick else [])]
    environment = {**os.environ, "PYTHONPATH": str(TOP), "RAY_DEDUP_LOGS": "0"}
    done = subprocess.run(
        argv, cwd=TOP, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    answer = json.loads(done.stdout.splitlines()[-1])
    print(f"part {part}: {answer['seconds']:.0f} s")
    return list(answer["rows"])


def decisions(rows: Sequence[Row]) -> list[Row]:
    print("\n(a) one decision, microseconds: median, p99, least")
    found = []
    for row in rows:
        if row["kind"] == "parity":
            print(f"  {row['rule']}: {row['differ']} of {row['compared']} decisions differ")
            continue
        print(
            f"  {row['trials']:>7} trials  {row['rule']:<22}{row['median_us']:>11.1f}"
            f"{row['p99_us']:>11.1f}{row['least_us']:>11.1f}"
        )
    timed = [row for row in rows if row["kind"] == "decision"]
    for trials in dict.fromkeys(row["trials"] for row in timed):
        same = [row for row in timed if row["trials"] == trials]
        peer = min((r for r in same if not _ours(r["rule"])), key=lambda r: r["median_us"])
        goal = {10_000: 50.0, 100_000: 100.0}.get(trials)
        found += [
            _row(
                f"decision at {trials} trials, {row['rule']}",
                "us",
                row["median_us"],
                peer["median_us"],
                peer["rule"],
                goal,
                None if goal is None else row["median_us"] <= goal,
                row["runs"],
            )
            for row in same
            if _ours(row["rule"])
        ]
    return found


def suggestions(rows: Sequence[Row]) -> list[Row]:
    print("\n(b) one suggestion, milliseconds of a processor: median, p95; Optuna's; the ratio")
    found = []
    for row in rows:
        ratio = processes.ratio(row["ratios"])
        print(
            f"  {row['trials']:>7} trials  {row['sampler']:<22}{row['median_ms']:>9.2f}"
            f"{row['p95_ms']:>9.2f}{row['peer_median_ms']:>9.2f}{row['peer_p95_ms']:>9.2f}"
            f"{ratio.value:>9.3f} ({ratio.low:.3f}..{ratio.high:.3f})"
        )
        what = f"suggestion at {row['trials']} trials, {row['sampler']}"
        for figure, goal in (("median_ms", None), ("p95_ms", 60.0)):
            ours, theirs = row[figure], row[f"peer_{figure}"]
            met = ours <= goal if goal else ratio.value <= 1  # as long as Optuna's
            name = f"{what}: {figure.removesuffix('_ms')}"
            found.append(_row(name, "ms", ours, theirs, row["peer"], goal, met, row["runs"]))
    return found


def clusters(rows: Sequence[Row]) -> list[Row]:
    print("\n(c) simulated clusters; times in R, the training of one full-length trial; - is never")
    print("    q1, q01: until a model is as good as the best 1 %, 0.1 % are when trained in full")
    print("    g1: until the trial that looks best belongs to the best 1 %, trained far or not")
    found: list[Row] = []
    timed = [row for row in rows if row["kind"] == "cluster"]
    for key in dict.fromkeys((row["scenario"], row["workers"]) for row in timed):
        same = [row for row in timed if (row["scenario"], row["workers"]) == key]
        _table(same)
        found += _compared(key, same)
    for row in rows:
        if row["kind"] != "wide":
            continue
        print(
            f"  {row['workers']} workers: utilisation {100 * row['utilisation']:.2f} %, "
            f"{row['trials']} trials ({row['trials_per_worker']:.1f} a worker)"
        )
        goal = 0.97 if row["workers"] >= 2000 else None
        met = None if goal is None else row["utilisation"] >= goal
        what = f"utilisation at {row['workers']} workers"
        found.append(_row(what, "share", row["utilisation"], None, "", goal, met, 1))
    return found


def _table(same: Sequence[Row]) -> None:
    """Rules or samplers on one cluster."""
    first = same[0]
    print(f"\n  {first['scenario']}, {first['workers']} workers, {first['runs']} seeds,", end=" ")
    print(f"horizon {first['horizon']:g} R")
    print(f"  {'method':<31}{'rank':>17}{'q1':>18}{'q01':>6}{'g1':>6}{'to R':>7}{'util':>7}")
    for row in sorted(same, key=lambda r: r["rank"][0]):
        print(
            f"  {row['rule']:<31}{_bounds(row['rank'], 1):>17}"
            f"{_bounds(row['time_to_1pct'], 2):>18}{_number(row['time_to_01pct'][0]):>6}"
            f"{_number(row['guess_of_1pct'][0]):>6}{row['finished'][0]:>7.0f}"
            f"{100 * row['utilisation'][0]:>6.1f}%"
        )


def _compared(key: tuple[str, int], same: Sequence[Row]) -> list[Row]:
    where = f"{key[0]}, {key[1]} workers"
    mine = [row for row in same if _ours(row["rule"])]
    peers = [row for row in same if not _ours(row["rule"])]
    default = next(row for row in mine if row["rule"] == "hpcdet hybrid")
    best = min(mine, key=lambda row: row["rank"][0])
    rival = min(peers, key=lambda row: row["rank"][0])
    sooner = min(peers, key=lambda row: row["time_to_1pct"][0])
    chance = next(row for row in same if row["rule"] == "random")
    runs = default["runs"]
    rows = [
        _row(
            f"mean rank, {where}: {row['rule']}",
            "rank",
            row["rank"][0],
            rival["rank"][0],
            rival["rule"],
            rival["rank"][0] if key[0] == "cluster" else None,
            row["rank"][0] <= rival["rank"][0] if key[0] == "cluster" else None,
            runs,
        )
        for row in ([default] if best is default else [default, best])
    ]
    ours, theirs = default["time_to_1pct"][0], sooner["time_to_1pct"][0]
    ideal = key[0] == "ideal"
    met = ours <= 1.05 * theirs if ideal else None
    goal = 1.05 * theirs if ideal else None
    what = f"time to the best 1 %, {where}: hpcdet hybrid"
    rows.append(_row(what, "R", ours, theirs, sooner["rule"], goal, met, runs))
    by_chance = chance["time_to_1pct"][0]
    goal, met = by_chance / 10, ours <= by_chance / 10
    what = f"time to the best 1 %, {where}: hpcdet hybrid"
    rows.append(_row(what, "R", ours, by_chance, "random", goal, met, runs))
    return rows


def samplers(rows: Sequence[Row]) -> list[Row]:
    print("\n(f) samplers, where hyperparameters say how a trial learns; columns as in (c)")
    found = []
    for key in dict.fromkeys((row["scenario"], row["workers"]) for row in rows):
        same = [row for row in rows if (row["scenario"], row["workers"]) == key]
        _table(same)
        best = min((r for r in same if _ours(r["rule"])), key=lambda r: r["rank"][0])
        peer = min((r for r in same if not _ours(r["rule"])), key=lambda r: r["rank"][0])
        ours, theirs = best["rank"][0], peer["rank"][0]
        what = f"mean rank of samplers, {key[0]}, {key[1]} workers: {best['rule']}"
        met = ours <= theirs
        found.append(_row(what, "rank", ours, theirs, peer["rule"], theirs, met, best["runs"]))
    return found


def headline(rows: Sequence[Row]) -> list[Row]:
    print("\n(g) one worker, cheap first looks: full trainings until a model is as good as the")
    print("    best 1 % (kernels), 0.1 % (iterations) of random ones, and gain over two searches")
    found = []
    for workload in dict.fromkeys(row["workload"] for row in rows):
        same = {row["method"]: row for row in rows if row["workload"] == workload}
        chance, bayes = same["random"], same["Optuna TPE"]
        print(f"\n  {workload}\n  {'method':<24}{'R':>26}{'found':>7}{'random':>9}{'Bayesian':>10}")
        for name, row in sorted(same.items(), key=lambda item: item[1]["to"][0]):
            gains = [other["to"][0] / row["to"][0] for other in (chance, bayes)]
            print(
                f"  {name:<24}{_bounds(row['to'], 2):>26}{row['found']:>4}/{row['runs']}"
                f"{_number(gains[0]):>8}x{_number(gains[1]):>9}x"
            )
        best = min((r for r in same.values() if _ours(r["method"])), key=lambda r: r["to"][0])
        if looks := chance["looks"]:
            passed = ", ".join(
                f"{100 * share:.0f} % {name[5:]}"
                for name, share in looks.items()
                if name.startswith("kept")
            )
            print(f"  {100 * looks['good']:.1f} % of random ones are as good, with ties;", end=" ")
            print(f"a first look costs {looks['cost']:.3f} R;")
            print(f"  of the good ones rungs let pass {passed} samples")
        for other, goal in ((chance, 50.0), (bayes, 10.0)):
            gain = other["to"][0] / best["to"][0]
            what = f"{workload}: times sooner than {other['method']}, {best['method']}"
            found.append(_row(what, "times", gain, None, "", goal, gain >= goal, best["runs"]))
    return found


def tabled(rows: Sequence[Row]) -> list[Row]:
    print(
        "\n(h) tables of real learning curves: mean rank of the incumbent (1 is best), 95 % bounds,"
    )
    print("    and in each quarter of the time")
    found = []
    for workers in dict.fromkeys(row["workers"] for row in rows):
        ranks = [r for r in rows if (r["kind"], r["workers"]) == ("tabled", workers)]
        apart = [r for r in rows if (r["kind"], r["workers"]) == ("apart", workers)]
        print(
            f"\n  {workers} workers, {ranks[0]['runs']} seeds, {len(ranks[0]['by_table'])} tables"
        )
        for row in sorted(ranks, key=lambda r: r["rank"][0]):
            quarters = " ".join(f"{value:5.2f}" for value in row["quarters"])
            print(f"  {row['method']:<26}{_bounds(row['rank'], 2):>22}   {quarters}")
        for row in apart:
            where = f"{workers} workers: {row['method']} less {row['other']}"
            print(f"  rank, {where}: {_bounds(row['all'], 2)}")
            for table, bounds in row["by_table"].items():
                print(f"    {table:<26}{_bounds(bounds, 2)}")
            # below 0 is better: on no table surely worse, and on all of them likely better
            met = row["all"][0] <= 0 and all(low <= 0 for _, low, _ in row["by_table"].values())
            what = f"difference of ranks on tables, {where}"
            found.append(_row(what, "rank", row["all"][0], None, "", 0.0, met, row["runs"]))
    return found


def networks(rows: Sequence[Row]) -> list[Row]:
    print("\n(d) networks: validation loss of the best; time in full trainings of average cost")
    found = []
    for data in dict.fromkeys(row["data"] for row in rows):
        same = [row for row in rows if row["data"] == data]
        print(f"\n  {data}\n  {'rule':<24}{'rank':>6}{'best':>9}{'in full':>9}{'as random':>11}")
        for row in sorted(same, key=lambda r: r["rank"]):
            print(
                f"  {row['rule']:<24}{row['rank']:>6.1f}{row['best']:>9.4f}"
                f"{row['best_finished']:>9.4f}{_number(row['time_to_random']):>11}"
            )
        default = next(row for row in same if row["rule"] == "hpcdet hybrid")
        peer = min((r for r in same if not _ours(r["rule"])), key=lambda r: r["rank"])
        what, ours = f"loss on {data}: hpcdet hybrid", default["best"]
        found.append(
            _row(what, "nats", ours, peer["best"], peer["rule"], None, None, default["runs"])
        )
    return found


def calibration(rows: Sequence[Row]) -> list[Row]:
    [row] = rows
    print("\n(e) the simulator against the private Slurm")
    if "skipped" in row:
        print(f"  skipped: {row['skipped']}")
        return []
    names = ("start_s", "unit_s", "decide_s", "wait_s")
    print("  measured:", ", ".join(f"{name} {row[name]:.3f}" for name in names))
    print(f"  trials at rungs, foretold {row['at']['foretold']}, real {row['at']['real']}")
    found = []
    for name, unit in (("end_s", "s"), ("trained", "units")):
        ours, real = row[name]["foretold"], row[name]["real"]
        met = abs(ours - real) <= 0.1 * real
        print(f"  {name}: foretold {ours:.1f}, real {real:.1f}")
        what = f"simulated {name} (goal: within 10 % of the real one)"
        found.append(_row(what, unit, ours, real, "private Slurm", real, met, 1))
    return found


def _ours(name: str) -> bool:
    return name.startswith("hpcdet")


def _number(value: float) -> str:
    return "-" if math.isinf(value) else f"{value:.2f}"


def _bounds(values: Sequence[float], digits: int) -> str:
    texts = ["-" if math.isinf(value) else f"{value:.{digits}f}" for value in values]
    return f"{texts[0]} ({texts[1]}..{texts[2]})"


def _row(
    what: str,
    unit: str,
    ours: float,
    peer: float | None,
    peer_name: str,
    goal: float | None,
    met: bool | None,
    runs: int,
) -> Row:
    def plain(value: float | None) -> float | None:
        return None if value is None or math.isinf(value) else round(value, 4)

    known = peer not in (None, 0) and not math.isinf(ours) and not math.isinf(peer or 0)
    return {
        "what": what,
        "unit": unit,
        "ours": plain(ours),
        "peer": plain(peer),
        "peer_name": peer_name,
        "ratio": round(ours / peer, 3) if known and peer else None,
        "goal": plain(goal),
        "met": met,
        "runs": runs,
    }


OWN = {"b", "e"}
"""Parts that need no peer but Optuna, or are hpcdet itself on a cluster: in its environment."""

SHOWN = {
    "a": decisions,
    "b": suggestions,
    "c": clusters,
    "d": networks,
    "e": calibration,
    "f": samplers,
    "g": headline,
    "h": tabled,
}


def main() -> int:
    """Measure, print, write; exit 0 also where a goal was missed (the table says so)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--part", action="append", choices=sorted(SHOWN))
    parser.add_argument("--seeds", type=int, default=50, help="of part c")
    parser.add_argument("--minutes", type=float, default=20.0, help="of part c, about")
    asked = parser.parse_args()
    os.environ["HPCDET_BENCH_MINUTES"] = str(asked.minutes)
    os.environ["HPCDET_BENCH_SEEDS"] = str(asked.seeds)
    # a real search takes its time, however quick the others are
    parts = sorted(set(asked.part or (set(SHOWN) - {"e"} if asked.quick else SHOWN)))
    python = peers_python() if set(parts) - OWN else Path(sys.executable)
    rows: list[Row] = []
    for part in parts:
        measured = rows_of(Path(sys.executable) if part in OWN else python, part, asked.quick)
        rows += SHOWN[part](measured)
    print("\ngoals")
    for row in rows:
        if row["met"] is not None:
            ratio = "" if row["ratio"] is None else f"  ({row['ratio']} of {row['peer_name']})"
            print(f"  {'met   ' if row['met'] else 'missed'}  {row['what']}: {row['ours']}{ratio}")
    name = "search" if not asked.part else "search-" + "".join(parts)
    results.write(name, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
