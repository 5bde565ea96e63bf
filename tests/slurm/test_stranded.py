"""Nobody is stranded: with the shipped ``generic-slurm`` and nobody following, one trial of 2 nodes
with 2 ranks each goes on by itself after the death of its worker or of its nodes.

CI runs some of them, with fake ranks and a more impatient copy of the site file
(``slurm_sites.newcomer``). ``HPCDET_STRANDED=all`` runs all of them so, ``real`` with real ranks,
``make stranded`` (``full``) with real ranks and the shipped file as it is, which takes an hour.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files, journal
from hpcdet.store.trials.standing import MANIFEST
from tests import dose, experiments
from tests.experiments import processes_of, same_bits, until
from tests.slurm_runs import Lab, Run, config, hpcdet, undisturbed
from tests.slurm_sites import newcomer

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]

DOSE = dose.STRANDED
SHIPPED, REAL = DOSE == "full", DOSE in ("full", "real")
BATCHES = 60 if REAL else 300
PATIENCE_S = 1500 if SHIPPED else 240

Site = dict[str, Any]
ASKED: Site = {}
NO_REQUEUE: Site = {"capabilities": {"requeue": "none"}}
ON_REQUEST = pytest.mark.skipif(not DOSE, reason="HPCDET_STRANDED=all, or make stranded")
REQUEUE = pytest.param(ASKED, id="requeue")
SUCCESSOR = pytest.param(NO_REQUEUE, id="successor")
RARE_REQUEUE = pytest.param(ASKED, id="requeue", marks=ON_REQUEST)
RARE_SUCCESSOR = pytest.param(NO_REQUEUE, id="successor", marks=ON_REQUEST)
ONE_RUNS: Site = {**NO_REQUEUE, "limits": {"poll_min_s": 1, "max_running": 1}}
"""The small job behind an array is itself all that may run."""
RARE_ONE = pytest.param(ONE_RUNS, id="one-runs", marks=ON_REQUEST)
_reference: list[str] = []


def submit(lab: Lab, site: Site, pace: float = 0.1, **env: str) -> Run:
    """``hpcdet submit``, which returns once the job is in the queue; nothing follows it.

    Args:
        env: variables of the job on top.
    """
    pace_file = lab.folder / f"pace-{len(lab.runs)}"
    experiments.set_pace(pace_file, pace)
    values = config(
        resources={"slots_per_trial": 4, "nodes": 2, "slots_per_node": 2},
        searcher={"max_length": {"batches": BATCHES}},
        environment={"environment_variables": {"PACE": str(pace_file), **env}},
        **({} if REAL else {"data": {"every": 10}}),
    )
    file = lab.model / "c.yaml"
    files.replace(file, yaml.safe_dump(values).encode())
    own = "generic-slurm"
    if not SHIPPED:
        own = str(newcomer(lab, **({} if REAL else {"python": lab.fake}), **site))
    elif site:
        own = str(lab.folder / "own.yaml")
        files.replace(Path(own), yaml.safe_dump({"extends": "generic-slurm", **site}).encode())
    made = hpcdet("submit", str(file), "--site", own, "--no-test", "-o", "id")
    assert made.returncode == 0, made
    run = Run(lab.cluster, ExperimentPaths(lab.root / made.stdout.strip()), pace_file)
    lab.runs.append(run)
    return run


def reference(lab: Lab) -> str:
    """Digest of the undisturbed trial."""
    if not REAL:
        return undisturbed(BATCHES)
    if not _reference:
        run = submit(lab, ASKED, pace=0.0)
        run.wait(timeout=PATIENCE_S)
        _reference.append(run.digest())
    return _reference[0]


def begun(run: Run) -> None:
    """Wait until the trial trains and has saved."""
    until(lambda: run.batches() >= 12, run.story, PATIENCE_S)


def went_on(run: Run, digest: str, since: float, attempts: int = 2) -> None:
    """It ends well, in the state of an undisturbed one, and leaves nothing in the queue.

    Args:
        since: when the cluster called node or job gone.
        attempts: that it takes at least.
    """

    def again() -> bool:
        later = run.paths.trial(1).attempts()[attempts - 1 :]
        lines = [line for attempt in later for line in journal.read(attempt.journal)]
        return any(line["kind"] == "first_step" for line in lines)

    until(lambda: again() or run.paths.closed.exists(), run.story, PATIENCE_S)
    print(f"trained again {time.time() - since:.0f} s after node or job was gone")
    run.faster()
    run.wait(timeout=PATIENCE_S)
    assert run.reasons()[-1] == "completed" and len(run.reasons()) >= attempts, run.story()
    same_bits(run.digest(), digest, run.story())
    until(lambda: not queued(run), run.story, PATIENCE_S)


def queued(run: Run) -> list[str]:
    """Jobs of the experiment that are not over."""
    live = ("PENDING", "RUNNING")
    return [job["JobName"] for job in run.jobs() if job["JobState"] in live]


def state(run: Run, nodes: list[str], to: str) -> None:
    why = [] if to == "RESUME" else ["Reason=test"]
    run.cluster.check("scontrol", "update", f"NodeName={','.join(nodes)}", f"State={to}", *why)


@pytest.mark.parametrize("site", [RARE_REQUEUE, SUCCESSOR])
def test_a_worker_is_killed(lab: Lab, site: Site) -> None:
    digest = reference(lab)
    run = submit(lab, site)
    begun(run)
    os.kill(run.worker_pid(), signal.SIGKILL)
    went_on(run, digest, time.time())
    assert len(run.submissions()) == (2 if site else 1), run.story()


@pytest.mark.parametrize("site", [RARE_REQUEUE, RARE_SUCCESSOR])
def test_a_node_is_set_down(lab: Lab, site: Site) -> None:
    digest = reference(lab)
    run = submit(lab, site)
    begun(run)
    nodes = run.claim().nodes
    state(run, nodes[:1], "DOWN")
    went_on(run, digest, time.time())
    assert len(run.submissions()) == (2 if site else 1), run.story()


def test_a_launch_fails(lab: Lab) -> None:
    """Slurm would hold a task that it may requeue, and nobody of ours runs to see it."""
    digest, before = reference(lab), lab.cluster.options
    lab.cluster.reconfigure(replace(before, prolog=True))
    bad = "n1"
    lab.cluster.launches_fail(bad)
    try:
        run = submit(lab, ASKED)
        shown = ("sinfo", "-h", "-n", bad, "-o", "%T")
        until(lambda: "drain" in lab.cluster.check(*shown), run.story, PATIENCE_S)
        went_on(run, digest, time.time(), attempts=1)
    finally:
        lab.cluster.launches_fail(bad, on=False)
        lab.cluster.reconfigure(before)
    assert bad not in run.claim().nodes and len(run.submissions()) == 2, run.story()


def at_once(run: Run) -> None:
    """SIGKILL the batch script, the worker and all ranks, as for want of memory."""
    worker = run.worker_pid()
    script = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
    for pid in (script, worker, *processes_of(run.paths, "hpcdet.attempt")):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("site", [RARE_REQUEUE, RARE_SUCCESSOR, RARE_ONE])
def test_a_whole_job_is_killed_at_once(lab: Lab, site: Site) -> None:
    digest = reference(lab)
    run = submit(lab, site)
    begun(run)
    at_once(run)
    went_on(run, digest, time.time())
    assert len(run.submissions()) == 2, run.story()


@contextlib.contextmanager
def lost(run: Run, nodes: list[str]) -> Iterator[None]:
    """The cluster hears nothing more of these nodes, on which all goes on, and calls them down."""
    for node in nodes:
        run.cluster.kill_node(node)
    state(run, nodes, "DOWN")
    try:
        yield
    finally:
        for node in nodes:
            run.cluster.start_node(node)


@pytest.mark.parametrize("site", [REQUEUE, RARE_SUCCESSOR])
def test_nodes_are_cut_off_and_their_old_copy_runs_on(lab: Lab, site: Site) -> None:
    """It is stopped, others go on, and then it wakes: it claims and commits nothing more."""
    digest = reference(lab)
    run = submit(lab, site)
    begun(run)
    old = [run.worker_pid(), *processes_of(run.paths, "hpcdet.attempt")]
    first = run.paths.root / "workers" / run.claim().worker / "journal.jsonl"
    with lost(run, run.claim().nodes):
        since = time.time()
        for pid in old:
            os.kill(pid, signal.SIGSTOP)
        until(lambda: len(run.paths.trial(1).attempts()) > 1, run.story, PATIENCE_S)
        taken = time.time()
        for pid in old:
            os.kill(pid, signal.SIGCONT)
        went_on(run, digest, since)
    if REAL:
        old_ones = run.paths.trial(1).checkpoints.glob(f"*.g1/{MANIFEST}")
        assert not [one for one in old_ones if one.stat().st_mtime > taken], run.story()
    claimed = journal.read(first)
    assert [line["attempt"] for line in claimed if line["kind"] == "claimed"] == [1]


def refusing(lab: Lab, command: str, word: str = "") -> dict[str, str]:
    """A PATH on which ``command`` refuses, always or where ``word`` is its first argument."""
    bin = lab.folder / "bin"
    bin.mkdir(exist_ok=True)
    (bin / command).write_text(
        "#!/bin/bash\n"
        f'if [ -z "{word}" ] || [ "$1" = "{word}" ]; then\n'
        f'    echo "{command} $*" >>{lab.folder}/refused; echo "access denied" >&2; exit 1\n'
        f'fi\nPATH={lab.cluster.environment()["PATH"]} exec {command} "$@"\n'
    )
    (bin / command).chmod(0o700)
    return {"PATH": f"{bin}:{lab.cluster.environment()['PATH']}"}


@ON_REQUEST
def test_a_requeue_that_is_refused_is_a_new_submission_at_once(lab: Lab) -> None:
    digest = reference(lab)
    run = submit(lab, ASKED, **refusing(lab, "scontrol", "requeue"))  # type: ignore[arg-type]
    begun(run)
    os.kill(run.worker_pid(), signal.SIGKILL)
    went_on(run, digest, time.time())
    assert (lab.folder / "refused").read_text() == "scontrol requeue Incomplete 1_0\n".replace(
        "1_0", f"{run.submissions()[0]}_0"
    )
    assert len(run.submissions()) == 2, run.story()


@pytest.mark.parametrize("site", [RARE_REQUEUE, pytest.param(NO_REQUEUE, id="no_requeue")])
def test_nodes_may_not_submit(lab: Lab, site: Site) -> None:
    """The cluster says so (AllocNodes), and ``sbatch`` refuses there: nobody asks it to."""
    digest = reference(lab)
    host = socket.gethostname().partition(".")[0]
    lab.cluster.check("scontrol", "update", "PartitionName=batch", f"AllocNodes=localhost,{host}")
    try:
        run = submit(lab, site, **refusing(lab, "sbatch"))  # type: ignore[arg-type]
        begun(run)
        os.kill(run.worker_pid(), signal.SIGKILL)
        went_on(run, digest, time.time())
    finally:
        lab.cluster.check("scontrol", "update", "PartitionName=batch", "AllocNodes=ALL")
    assert not (lab.folder / "refused").exists()
    assert len(run.submissions()) == 1, run.story()


@ON_REQUEST
def test_a_node_drains(lab: Lab) -> None:
    """What runs there runs on; who comes after it goes elsewhere."""
    digest = reference(lab)
    run = submit(lab, NO_REQUEUE)
    begun(run)
    nodes = run.claim().nodes
    state(run, nodes, "DRAIN")
    os.kill(run.worker_pid(), signal.SIGKILL)
    went_on(run, digest, time.time())
    assert not set(run.claim().nodes) & set(nodes)


@pytest.mark.parametrize("site", [RARE_REQUEUE, RARE_SUCCESSOR])
def test_what_its_user_cancels(lab: Lab, site: Site) -> None:
    """``scancel`` wakes the job behind the array, too; it leaves: others go on, or nobody."""
    digest = reference(lab)
    run = submit(lab, site)
    begun(run)
    lab.cluster.check("scancel", run.submissions()[0])
    went_on(run, digest, time.time())
    assert len(run.submissions()) == 2, run.story()
    other = submit(lab, site)
    begun(other)
    assert hpcdet("cancel", other.paths.id, "--wait").returncode == 0
    until(lambda: not queued(other), other.story, PATIENCE_S)
    assert len(other.submissions()) == 1, other.story()
    for one in (run, other):
        assert not list((one.paths.root / "jobs").glob("*.stuck.json")), one.story()


@ON_REQUEST
@pytest.mark.parametrize("site", [REQUEUE, SUCCESSOR])
def test_a_node_is_lost_and_slurm_finds_out(lab: Lab, site: Site) -> None:
    before = lab.cluster.options
    lab.cluster.reconfigure(replace(before, slurmd_timeout_s=20))
    try:
        digest = reference(lab)
        run = submit(lab, site)
        begun(run)
        run.faster(2.0)  # slower, that is: its ranks run on until Slurm has noticed, and longer
        node = run.claim().nodes[0]
        lab.cluster.kill_node(node)
        try:
            shown = ("sinfo", "-h", "-n", node, "-o", "%T")
            until(lambda: "down" in lab.cluster.check(*shown), run.story, PATIENCE_S)
            went_on(run, digest, time.time())
        finally:
            lab.cluster.start_node(node)
    finally:
        lab.cluster.reconfigure(before)
