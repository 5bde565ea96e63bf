"""``make bench-sites``: load on a scheduler, speed of submission, start-up in a container.

*Load*: searches of 1,000 trials on 16 workers, by ``hpcdet submit`` on a private Slurm of four
nodes with the shipped interval of queries (60 s). Wrappers around the scheduler's commands count
calls; ranks train nothing (``tests/fake_rank.py``), all else is what users run. Per hour: of the
search's own time. *Submission*: the whole command for 100 workers. *Containers*: from the launch of
a rank to its first step, inside Charliecloud and outside, in turn. Exit code 0 only if all goals
are met.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP), str(TOP / "benchmarks")]

import results  # noqa: E402
import yaml  # noqa: E402

import hpcdet  # noqa: E402
from hpcdet.store.folder.layout import ExperimentPaths  # noqa: E402
from hpcdet.store.folder.records import Closed  # noqa: E402
from hpcdet.store.fs import journal  # noqa: E402
from tests import experiments  # noqa: E402
from tests.cluster import slurm  # noqa: E402
from tests.containers import image_folder  # noqa: E402
from tests.slurm_sites import write_site  # noqa: E402

TRIALS, WORKERS = 1000, 16
SEARCHES = ("random", "adaptive_asha")
POLL_S = 60
SUBMITTED, SUBMIT_GOAL_S = 100, 10.0
RUNS = 3
PATIENCE_S = 7200
QUESTIONS = {"squeue", "sacct", "sinfo", "sdiag", "sstat"}
FACTS = {"config", "partition"}
"""What ``scontrol`` shows of the cluster: asked once a day, and by each process that decides."""


def kind(words: list[str]) -> str:
    """What a call is to the scheduler: query, fact, change, submission, step, or nothing."""
    program, *rest = words
    if program in QUESTIONS:
        return "query"
    if program == "sacctmgr":
        return "fact"
    if program == "sbatch":
        return "query" if "--test-only" in rest else "submission"
    if program == "srun":
        return "step"
    if program == "scancel":
        return "change"
    verbs = [word for word in rest if not word.startswith("-")]
    if verbs[:2] == ["show", "hostnames"]:  # it only expands a text
        return "nothing"
    if verbs[:1] == ["show"]:
        return "fact" if verbs[1] in FACTS else "query"
    return "change"


def counted(lines: Iterable[str]) -> Counter[str]:
    """Count the calls that wrappers have written down, by their kind."""
    return Counter(kind(line.split()[1:]) for line in lines)


class Bench:
    """A folder for experiments on a private Slurm, and a user's command line there."""

    def __init__(self, cluster: slurm.SlurmCluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.root = folder / "experiments"
        self.root.mkdir(mode=0o700)
        self.model = folder / "model"
        self.model.mkdir(mode=0o700)
        self.environ = {
            **os.environ,
            **cluster.environment(),
            "HPCDET_ROOT": str(self.root),
            "HPCDET_CACHE": str(folder / "cache"),
            "PYTHONPATH": str(TOP),
        }
        python = experiments.fake_python(folder)
        limits = {"poll_min_s": POLL_S}
        self.site = write_site(folder, cluster, python=python, limits=limits, lease_ttl_s=180)

    def submit(self, values: dict[str, Any], *flags: str) -> ExperimentPaths:
        """Submit as a user does. Raises CalledProcessError: it was refused."""
        config = self.model / "config.yaml"
        config.write_text(yaml.safe_dump(values))
        words = ["submit", str(config), "--site", str(self.site), "--no-test", "-o", "id", *flags]
        done = subprocess.run(
            [sys.executable, "-m", "hpcdet", *words],
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return ExperimentPaths(self.root / done.stdout.strip())


def search(name: str, trials: int, workers: int) -> dict[str, Any]:
    """The config of a search of fake trials with losses in no order."""
    values = experiments.config(
        16,
        trials=trials,
        searcher={"name": name, "max_concurrent_trials": workers},
        data={"every": 16, "losses": "scrambled"},
        resources={"memory_per_slot": 2**28, "walltime_s": 4 * 3600},
    )
    values["worker"] = {"min_segment_s": 5}
    return values


def load(bench: Bench, name: str, trials: int) -> Iterator[results.Row]:
    """Run a search to its end; yield a row for each kind of call."""
    before = len(bench.cluster.calls.read_text().splitlines())
    begin = time.monotonic()
    paths = bench.submit(search(name, trials, WORKERS))
    while not paths.closed.exists():
        if time.monotonic() - begin > PATIENCE_S:
            raise TimeoutError(experiments.story(paths)[-4000:])
        time.sleep(1)
    hours = (time.monotonic() - begin) / 3600
    closed = Closed.read(paths.closed)
    assert closed is not None and closed.state == "COMPLETED", closed
    _until_gone(bench, paths)
    calls = counted(bench.cluster.calls.read_text().splitlines()[before:])
    jobs = [job for job in bench.cluster.jobs() if job["JobName"].startswith(paths.id)]
    starts = sum(job.get("NodeList", "(null)") not in ("", "(null)") for job in jobs)
    submissions = calls["submission"]
    ran = sum(1 for trial in paths.trials() for _ in trial.attempts())
    print(
        f"{name}: {trials} trials, {ran} attempts, {60 * hours:.1f} minutes, {len(jobs)} jobs, "
        f"{starts} of them started: {dict(calls)}",
        flush=True,
    )
    what = f"{name}, {trials} trials"
    queries = hours * 3600 / POLL_S + starts
    yield _row(f"{what}: queries", calls["query"], queries, "one a poll and one a start", hours)
    yield _row(f"{what}: changes", calls["change"], len(jobs), "one a job", hours)
    yield _row(f"{what}: submissions", submissions, 2 * len(paths.submissions()), "two each", hours)
    facts = 3 + len(list((paths.root / "terms").iterdir()))
    yield _row(f"{what}: facts", calls["fact"], facts, "three a day, one a decider", hours)
    yield _row(f"{what}: steps", calls["step"], ran + starts, "one an attempt, one a job", hours)


def _until_gone(bench: Bench, paths: ExperimentPaths) -> None:
    """Wait for what the last worker still says to the scheduler."""
    limit = time.monotonic() + 120
    while bench.cluster.call("squeue", "-h").stdout and time.monotonic() < limit:
        time.sleep(1)


def _row(what: str, calls: int, most: float, bound: str, hours: float) -> results.Row:
    return {
        "what": what,
        "unit": "calls",
        "ours": calls,
        "peer": round(most, 1),
        "peer_name": bound,
        "ratio": round(calls / most, 3),
        "goal": round(most, 1),
        "met": calls <= most,
        "runs": 1,
        "per_hour": round(calls / hours, 1),
    }


def submission(bench: Bench) -> results.Row:
    """Time of ``hpcdet submit`` for many workers, that wait in the queue."""
    took = []
    for _ in range(RUNS):
        begin = time.monotonic()
        paths = bench.submit(search("random", SUBMITTED, SUBMITTED), "--hold")
        took.append(time.monotonic() - begin)
        shown = bench.cluster.check("squeue", "-h", "-r", "-o", "%j")
        waiting = shown.split().count(f"{paths.id}-1")
        assert waiting == SUBMITTED, shown
        bench.cluster.clear()
    seconds = statistics.median(took)
    return {
        "what": f"hpcdet submit of {SUBMITTED} workers",
        "unit": "s",
        "ours": round(seconds, 2),
        "peer": None,
        "peer_name": "",
        "ratio": None,
        "goal": SUBMIT_GOAL_S,
        "met": seconds <= SUBMIT_GOAL_S,
        "runs": RUNS,
    }


def containers(folder: Path) -> Iterator[results.Row]:
    """Start-up of a rank inside a container and outside, in turn."""
    if shutil.which("ch-run") is None:
        print("containers: not measured: ch-run is not here (make packages)")
        return
    image = folder / "image"
    python = image_folder.build(image, Path(hpcdet.__file__).parent)
    packages = f"{sysconfig.get_path('purelib')}:{image_folder.PACKAGES}"
    site = experiments.local_site(
        container={"kind": "charliecloud", "binds": [packages]},
        paths={"images": str(folder / "images")},
        env={"OMP_NUM_THREADS": "1"},
    )
    model = experiments.write_model(folder / "contained")
    inside: list[float] = []
    outside: list[float] = []
    os.environ.setdefault("USER", "root")
    with experiments.local_jobs(folder / "state"):
        for number in range(RUNS):
            for environment, took in (
                ({"image": str(image), "python": str(python)}, inside),
                ({}, outside),
            ):
                root = folder / f"root-{number}-{len(took)}-{bool(environment)}"
                root.mkdir(mode=0o700)
                values = experiments.config(2, environment=environment)
                paths = experiments.submit(values, root, site, model)
                assert experiments.crank_to_end(paths).state == "COMPLETED", paths
                took.append(_start(paths))
    yield {
        **results.row("start of a rank in Charliecloud", inside, "outside", outside, 0.0),
        "goal": None,
        "met": True,
    }


def _start(paths: ExperimentPaths) -> float:
    """Seconds from the launch of a rank to its first step."""
    told = [line for worker in paths.workers() for line in journal.read(worker.journal)]
    launched = next(line["t"] for line in told if line["kind"] == "launched")
    lines = journal.read(paths.trial(1).attempt(1).journal)
    first = next(line["t"] for line in lines if line["kind"] == "first_step")
    return (datetime.fromisoformat(first) - datetime.fromisoformat(launched)).total_seconds()


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=TRIALS, help="of each search")
    parser.add_argument("--search", choices=SEARCHES, action="append", help="of the load")
    parser.add_argument("--part", choices=("load", "submission", "containers"), action="append")
    given = parser.parse_args()
    parts = given.part or ["submission", "containers", "load"]
    rows: list[results.Row] = []
    with tempfile.TemporaryDirectory(prefix="hpcdet-bench-") as place:
        folder = Path(place)
        folder.chmod(0o755)
        if "containers" in parts:
            rows += containers(folder)
        if {"load", "submission"} & set(parts):
            if why := slurm.why_not():
                print(f"load and submission: not measured: {why}")
                return 3
            cluster = slurm.SlurmCluster(f"bench-{os.getpid()}")
            cluster.up(owner=os.getpid())
            try:
                bench = Bench(cluster, folder)
                if "submission" in parts:
                    rows.append(submission(bench))
                for name in given.search or SEARCHES if "load" in parts else ():
                    rows += load(bench, name, given.trials)
            finally:
                cluster.down()
    _tell(rows)
    if not given.part and not given.search and given.trials == TRIALS:
        results.write("sites", rows)
    return 0 if all(row["met"] for row in rows) else 1


def _tell(rows: list[results.Row]) -> None:
    width = max((len(row["what"]) for row in rows), default=0) + 2
    print(f"{'what':<{width}}{'ours':>9}{'beside':>9}{'per hour':>10}  met  beside what")
    for row in rows:
        beside = row["peer"] if row["peer"] is not None else row["goal"]
        print(
            f"{row['what']:<{width}}{row['ours']:>9}{beside:>9}{row.get('per_hour', ''):>10}"
            f"  {'yes' if row['met'] else 'no':<4} {row['peer_name'] or 'goal'}"
        )


if __name__ == "__main__":
    sys.exit(main())
