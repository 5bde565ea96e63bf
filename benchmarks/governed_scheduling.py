"""``make governed-scheduling``: jobs that a policy governs run only on nodes that enforce it.

On a private Slurm of four nodes, of which two have the feature and a signed statement: real
searches, submitted by the command line. Each row is a claim with what was wanted and what was
seen; exit code 0 only if all are as wanted. All nodes are this machine, so they share its boot id:
the statement of another boot is made with the same key.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP), str(TOP / "benchmarks")]

from claims import Claimed, conclude, tell  # noqa: E402

from hpcdet.control.turn import controller  # noqa: E402
from hpcdet.store.folder.layout import ExperimentPaths  # noqa: E402
from hpcdet.store.folder.records import Claim, Closed, End, WorkerClaim, WorkerEnd  # noqa: E402
from hpcdet.store.fs import journal  # noqa: E402
from tests import experiments, governed_nodes  # noqa: E402
from tests.cluster import slurm  # noqa: E402
from tests.cluster.configuration import Options  # noqa: E402
from tests.governed_nodes import GovernedNodes  # noqa: E402
from tests.slurm_sites import write_site  # noqa: E402

GOOD = ("n1", "n2")
KINDS = ("false", "expired", "copied", "rebooted")
PATIENCE_S = 240
TRIALS = 4


class Bench:
    """A folder for experiments on a cluster, and a user's commands there."""

    def __init__(self, cluster: slurm.SlurmCluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.nodes = GovernedNodes(folder, cluster)
        self.model = governed_nodes.write_model(folder / "model")
        self.site = write_site(folder, cluster, governance=self.nodes.site())
        self.root = folder / "experiments"
        self.root.mkdir(mode=0o700)
        self.count = 0
        os.environ.update(
            cluster.environment(),
            HPCDET_ROOT=str(self.root),
            HPCDET_CACHE=str(folder / "cache"),
        )

    def hpcdet(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command as a user does, in the folder of the model."""
        return subprocess.run(
            [sys.executable, "-m", "hpcdet", *words],
            cwd=self.model,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
            env={**os.environ, "PYTHONPATH": str(TOP)},
        )

    def config(self, *, governed: bool = True, trials: int = 1) -> tuple[Path, Path, Path]:
        """Write a config; returns it, the folder that imports touch, and the file of the pace."""
        self.count += 1
        touched = self.folder / f"touched-{self.count}"
        touched.mkdir()
        pace = self.folder / f"pace-{self.count}"
        experiments.set_pace(pace, 0.0)
        values = governed_nodes.config(touched, pace, trials=trials, governed=governed)
        return (
            governed_nodes.write_config(self.model / f"c{self.count}.yaml", values),
            touched,
            pace,
        )

    def submit(self, config: Path, *words: str) -> ExperimentPaths:
        """Submit; returns the experiment. Raises RuntimeError: it was refused."""
        done = self.hpcdet("submit", str(config), "--site", str(self.site), "-o", "id", *words)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        return ExperimentPaths(self.root / done.stdout.split()[-1])

    def turn(self, paths: ExperimentPaths) -> controller.Turn:
        """Turn the crank once, as ``hpcdet status`` of somebody who looks would."""
        return experiments.turn(paths)


def until(condition: Callable[[], object], paths: ExperimentPaths) -> None:
    """Wait for a condition. Raises TimeoutError with the experiment's story."""
    limit = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > limit:
            raise TimeoutError(experiments.story(paths))
        time.sleep(0.2)


def ends(paths: ExperimentPaths) -> list[End]:
    """The ends of all attempts that have ended."""
    found = [End.read(one.end) for trial in paths.trials() for one in trial.attempts()]
    return [end for end in found if end is not None]


def ran_on(paths: ExperimentPaths) -> list[str]:
    """The nodes of all attempts, each once."""
    found = [Claim.read(one.claim) for trial in paths.trials() for one in trial.attempts()]
    return sorted({node for claim in found if claim for node in claim.nodes})


def search(bench: Bench, *, governed: bool) -> list[Claimed]:
    """A search whose trials would fill all four nodes, one each."""
    config, touched, pace = bench.config(governed=governed, trials=TRIALS)
    experiments.set_pace(pace, 0.3)  # so that none is free again before all have begun
    paths = bench.submit(config, "--no-test")
    until(lambda: Closed.read(paths.closed), paths)
    wanted = list(GOOD) if governed else ["n1", "n2", "n3", "n4"]
    name = "under the policy" if governed else "control, without the policy"
    state = Closed.read(paths.closed)
    return [
        Claimed(f"{name}: state", "COMPLETED", state.state if state else ""),
        Claimed(f"{name}: trials that completed", TRIALS, _completed(paths)),
        Claimed(f"{name}: nodes of all attempts", wanted, ran_on(paths)),
        Claimed(f"{name}: where model_def was imported", wanted, _places(bench, touched)),
    ]


def _completed(paths: ExperimentPaths) -> int:
    return sum(end.reason == "completed" for end in ends(paths))


def _places(bench: Bench, touched: Path) -> list[str]:
    return sorted(bench.nodes.touched(touched))


def rehearsal(bench: Bench) -> list[Claimed]:
    """The test before a submission runs on a governed node, by itself."""
    config, touched, _ = bench.config()
    done = bench.hpcdet("test", str(config), "--site", str(bench.site))
    local = bench.hpcdet("test", str(config), "--site", str(bench.site), "--local")
    places = _places(bench, touched)
    return [
        Claimed("rehearsal: exit code", 0, done.returncode),
        Claimed("rehearsal: on governed nodes only", True, bool(places) and set(places) <= {*GOOD}),
        Claimed("rehearsal with --local: exit code", 4, local.returncode),
    ]


def refused_at_submit(bench: Bench) -> list[Claimed]:
    """What cannot be, or would loosen the policy: exit code 4, and nothing is made."""
    before = sorted(bench.root.iterdir())
    config, touched, _ = bench.config()
    found = []
    for name, change in (
        ("three nodes, where two have the feature", "resources={nodes: 3, slots_per_trial: 3}"),
        ("--clusters", "slurm.sbatch_args=['--clusters=other']"),
        ("a constraint that counts", "slurm.sbatch_args=['--constraint=x*1']"),
    ):
        words = ("submit", str(config), "--site", str(bench.site), "--no-test", "--set", change)
        done = bench.hpcdet(*words)
        said = "P17" in done.stderr
        found.append(Claimed(f"refused at submit: {name}", [4, True], [done.returncode, said]))
    other = {"capabilities": {"something": {"slurm": {"constraint": "x"}}}}
    site = write_site(bench.folder, bench.cluster, name="without", governance=other)
    done = bench.hpcdet("submit", str(config), "--site", str(site), "--no-test")
    said = "has no capability enclave_phi" in done.stderr
    found.append(
        Claimed("refused at submit: a site without it", [4, True], [done.returncode, said])
    )
    made = len(sorted(bench.root.iterdir())) - len(before)
    return [
        *found,
        Claimed("refused at submit: experiments made", 0, made),
        Claimed("refused at submit: where model_def was imported", [], _places(bench, touched)),
    ]


SAID = {
    "false": "does not attest enclave_phi",
    "expired": "the statement ended at",
    "copied": "the statement is of node",
    "rebooted": "the statement is of another boot",
}


def after_a_requeue(bench: Bench, kind: str) -> list[Claimed]:
    """Both nodes' statements stop to hold while a trial trains; then its job is requeued."""
    bench.nodes.attest(*GOOD)
    config, touched, pace = bench.config()
    experiments.set_pace(pace, 1.0)
    paths = bench.submit(config, "--no-test")
    first = paths.trial(1).attempt(1)
    until(lambda: _trains(first.journal), paths)
    imported = bench.nodes.touched(touched)
    bench.nodes.spoil(kind, *GOOD)
    claim = Claim.read(first.claim)
    assert claim is not None
    bench.cluster.check("scontrol", "requeue", claim.job)
    until(lambda: _paused(bench, paths), paths)
    why = _paused(bench, paths)
    refusals = [end for end in map(_end_of, paths.workers()) if end and end.refused]
    found = [
        Claimed(f"{kind}: workers refused before PAUSED", 2, len(refusals)),
        Claimed(f"{kind}: refused on both nodes", list(GOOD), _refused_nodes(paths)),
        Claimed(f"{kind}: the reason is said", True, SAID[kind] in why),
        Claimed(f"{kind}: imports of model_def after it", imported, bench.nodes.touched(touched)),
        Claimed(f"{kind}: attempts charged to the trial", 0, _charged(paths)),
        Claimed(f"{kind}: nodes drained", "", _drained(bench)),
        Claimed(f"{kind}: requeued after the refusal", False, any(one.returns for one in refusals)),
    ]
    bench.nodes.attest(*GOOD)
    experiments.set_pace(pace, 0.0)
    resumed = bench.hpcdet("resume", paths.id)
    until(lambda: Closed.read(paths.closed), paths)
    state = Closed.read(paths.closed)
    done = [resumed.returncode, state.state if state else ""]
    return [*found, Claimed(f"{kind}: repaired and resumed", [0, "COMPLETED"], done)]


def _trains(path: Path) -> bool:
    return any(line["kind"] == "first_step" for line in journal.read(path))


def _paused(bench: Bench, paths: ExperimentPaths) -> str:
    """Return why the experiment is paused; "" if it is not."""
    done = bench.hpcdet("status", paths.id, "-o", "json")
    items = json.loads(done.stdout)["items"] if done.returncode == 0 else []
    return str(items[0]["why"]) if items and items[0]["state"] == "PAUSED" else ""


def _end_of(worker: Any) -> WorkerEnd | None:
    return WorkerEnd.read(worker.end)


def _refused_nodes(paths: ExperimentPaths) -> list[str]:
    found: set[str] = set()
    for worker in paths.workers():
        end, claim = WorkerEnd.read(worker.end), WorkerClaim.read(worker.claim)
        if end is not None and end.refused and claim is not None:
            found |= end.refused.keys()
    return sorted(found)


def _charged(paths: ExperimentPaths) -> int:
    return sum(end.reason in ("user_error", "oom", "launch_failed") for end in ends(paths))


def _drained(bench: Bench) -> str:
    said = bench.cluster.check("sinfo", "-h", "-N", "-t", "drain,drained,draining", "-o", "%N")
    return said.strip()


def rank_refuses(bench: Bench) -> list[Claimed]:
    """A trial on two nodes: its worker's node is good, and the other rank's is not."""
    bench.nodes.attest(*GOOD)
    bench.nodes.spoil("false", "n2")
    config, touched, _ = bench.config()
    size = "resources={nodes: 2, slots_per_trial: 2}"
    paths = bench.submit(config, "--no-test", "--set", size)
    until(lambda: _paused(bench, paths), paths)
    reasons = [[end.reason, end.nodes] for end in ends(paths)]
    return [
        Claimed("rank: reasons of the attempts' ends", [["refused", ["n2"]]], reasons[:1]),
        Claimed("rank: n2 imported model_def", False, "n2" in bench.nodes.touched(touched)),
        Claimed("rank: the reason is said", True, SAID["false"] in _paused(bench, paths)),
        Claimed("rank: attempts charged to the trial", 0, _charged(paths)),
    ]


def main() -> int:
    """Run all, print and write; exit code 1 if a claim is not met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="names of parts, to look at them")
    only = parser.parse_args().only
    name = f"gov-{os.getpid()}"
    cluster = slurm.SlurmCluster(name, Options(accounting=False))
    claims: list[Claimed] = []
    with tempfile.TemporaryDirectory(prefix="hpcdet-governed-") as folder:
        cluster.up(os.getpid())
        try:
            bench = Bench(cluster, Path(folder))
            bench.nodes.advertise(*GOOD)
            bench.nodes.attest(*GOOD)
            parts: list[tuple[str, Callable[[], list[Claimed]]]] = [
                ("governed", lambda: search(bench, governed=True)),
                ("control", lambda: search(bench, governed=False)),
                ("rehearsal", lambda: rehearsal(bench)),
                ("submit", lambda: refused_at_submit(bench)),
                *((kind, lambda kind=kind: after_a_requeue(bench, kind)) for kind in KINDS),
                ("rank", lambda: rank_refuses(bench)),
            ]
            for part, run in parts:
                if only and part not in only:
                    continue
                began = time.monotonic()
                found = run()
                claims += found
                tell(found)
                print(f"     ({part}: {time.monotonic() - began:.0f} s)", flush=True)
        finally:
            cluster.down()  # before the folder goes: workers that leave still write there
    return conclude("governed-scheduling", claims, whole=not only)


if __name__ == "__main__":
    sys.exit(main())
