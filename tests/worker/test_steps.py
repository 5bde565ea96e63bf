"""How ranks are started, told, ended and swept up; and what hears a notice."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from hpcdet.jobs.script import warm_launch
from hpcdet.jobs.script.environment import for_step
from hpcdet.jobs.script.launch import launch
from hpcdet.launchers import opening as launchers
from hpcdet.launchers.common import Launch
from hpcdet.process.ranks import Ranks
from hpcdet.schedulers.common import processes
from hpcdet.schedulers.common.allocation import Allocation
from hpcdet.store.config import resolved_config
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.worker.attempts import step as steps
from hpcdet.worker.attempts.step import PEER_LOST, Exit, RunningStep
from tests import experiments as x

RESOURCES = {"slots_per_trial": 4, "nodes": 2, "slots_per_node": 2, "cpus_per_slot": 3}


def planned(
    launcher: dict[str, Any],
    backend: str = "gloo",
    lane: int | None = None,
    slurm: bool = False,
    hosts: tuple[str, ...] = (),
    **resources: object,
) -> Launch:
    """The step of an attempt; with ``lane``, one of two; with ``hosts``, of one of two groups."""
    values = x.config(
        trials=1 if lane is None else 4,
        worker={"lanes": 1 if lane is None else 2, "node_groups": 2 if hosts else 1},
        resources={**RESOURCES, **resources},
        distributed={"backend": backend},
        environment={"environment_variables": {"MINE": "1"}},
    )
    paths = ExperimentPaths(Path("/scratch/exp-0001"))
    cluster = slurm or launcher["kind"] == "srun"
    scheduler = "slurm" if cluster else "local"
    site = x.local_site(launcher=launcher, python="/opt/python", scheduler=scheduler)
    attempt = paths.trial(7).attempt(2)
    allocation = Allocation("5_1", hosts or ("n1",), 0, 99.5, slurm)
    return launch(resolved_config.resolve(values), site, paths, attempt, allocation, lane or 0)


RANK = "/opt/python -Pm hpcdet.attempt /scratch/exp-0001 7 2"


def test_srun_gets_all_it_must_not_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_CPU_BIND", "mask")
    monkeypatch.setenv("RANK", "3")
    plan = planned({"kind": "srun", "args": ["--mpi=pmix"]}, memory_per_slot=(1 << 30) + 1)
    line = shlex.join(plan.argv)
    assert line.startswith("srun ") and line.endswith(f" --mpi=pmix {RANK}")
    for option in (
        "--nodes=2 --ntasks=4 --ntasks-per-node=2 --cpus-per-task=3 --exact --cpu-bind=none",
        "--kill-on-bad-exit=1 --wait=60 --export=ALL",
        "--job-name=7-2 --mem=2049M",
    ):
        assert option in line
    assert plan.by_launcher and len(plan.processes) == 1
    env = plan.environment
    assert (env["SLURM_JOB_ID"], env["HPCDET_DEADLINE"]) == ("5", "99.500")
    assert (env["HPCDET_BACKEND"], env["MINE"]) == ("gloo", "1")
    assert not {"SLURM_PROCID", "SLURM_CPU_BIND", "RANK"} & env.keys()


def test_other_launchers() -> None:
    mpirun = shlex.join(planned({"kind": "mpirun", "args": ["--mca", "btl", "self,tcp"]}).argv)
    assert mpirun.startswith("mpirun -np 4 --map-by ppr:2:node:OVERSUBSCRIBE --bind-to none")
    assert mpirun.endswith(f"--mca btl self,tcp {RANK}")
    assert "SRUN_EXPORT_ENV" not in planned({"kind": "mpirun"}).environment
    daemons = planned({"kind": "mpirun"}, slurm=True).environment
    assert daemons["OMPI_MCA_orte_launch_agent"] == "/opt/python -Pm hpcdet.worker.remote orted"
    assert "OMPI_MCA_btl" not in daemons, "two nodes speak over their network"
    alone = planned({"kind": "mpirun"}, nodes=1, slots_per_node=4).environment
    assert alone["OMPI_MCA_btl"] == "^tcp,ofi"
    assert (daemons["SRUN_EXPORT_ENV"], daemons["SLURM_CPU_BIND"]) == ("ALL", "none")
    local = planned({"kind": "local"}, nodes=1, slots_per_node=4)
    assert shlex.join(local.argv) == RANK
    assert [ranks["RANK"] for ranks in local.processes] == ["0", "1", "2", "3"]
    assert {ranks["WORLD_SIZE"] for ranks in local.processes} == {"4"}


def nursery(
    launcher: dict[str, Any], monkeypatch: pytest.MonkeyPatch, **changes: Any
) -> Launch | str:
    """The nurseries of two trials on two nodes, or why there are none."""
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    for name, value in changes.pop("environ", {}).items():
        monkeypatch.setenv(name, value)
    resources = {**RESOURCES, **changes.pop("resources", {})}
    values = x.config(trials=2, resources=resources, **changes)
    scheduler = "slurm" if launcher["kind"] == "srun" else "local"
    site = x.local_site(launcher=launcher, python="/opt/python", scheduler=scheduler)
    paths, allocation = ExperimentPaths(Path("/scratch/exp-1")), Allocation("5_1", ("n1",), 0, 9.0)
    return warm_launch.nursery(resolved_config.resolve(values), site, paths, allocation)


def test_nurseries_under_srun_hold_nothing_and_hear_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    args = ["--account=a", "--qos=high"]
    worker = {"warm_imports": ["pandas"]}
    plan = nursery({"kind": "srun", "args": args}, monkeypatch, worker=worker)
    assert isinstance(plan, Launch) and plan.by_launcher
    line = shlex.join(plan.argv)
    assert "--nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=6 --overlap --mem=0" in line
    assert "--export=ALL --input=all" in line
    assert "--account=a --qos=high /opt/python -Pm hpcdet.nursery pandas ----" in line
    ranks = planned({"kind": "srun"}).forked
    assert [one["SLURM_PROCID"] for node in ranks for one in node] == ["0", "1", "2", "3"]
    assert [one["SLURM_LOCALID"] for node in ranks for one in node] == ["0", "1"] * 2
    read = Ranks.from_environment({**ranks[1][0], "SLURM_STEP_ID": "0", "SLURM_NODEID": "1"})
    assert read == Ranks(rank=2, world=4, local=0, local_world=2, node=1)


@pytest.mark.parametrize(
    ("launcher", "changes", "why"),
    [
        ({}, {"worker": {"warm": "off"}}, "worker.warm: off"),
        ({}, {"entrypoint": "./train.sh"}, "starts another program"),
        ({}, {"entrypoint": "/opt/other/python train.py"}, "starts another program"),
        ({}, {"environment": {"image": "a.sif"}}, "container"),
        ({}, {"worker": {"node_groups": 2}}, "several groups"),
        ({}, {"distributed": {"backend": "mpi"}}, "MPI"),
        ({}, {"resources": {"memory_per_slot": 1 << 30}}, "bounds the memory"),
        ({}, {"worker": {"lanes": 2}}, "its part of the node"),
        ({"args": ["--gpus-per-task=1"]}, {}, "--gpus-per-task=1 may give"),
        ({"args": ["--cpu-bind=cores"]}, {}, "--cpu-bind=cores may give"),
        ({}, {"environ": {"SLURM_GPUS_PER_TASK": "1"}}, "SLURM_GPUS_PER_TASK may give"),
        ({"kind": "mpirun"}, {}, "mpirun"),
        ({"kind": "mpiexec"}, {}, "mpiexec"),
        ({"kind": "pbsdsh"}, {}, "pbsdsh"),
    ],
)
def test_where_ranks_cannot_be_forked_the_reason_is_said(
    launcher: dict[str, Any], changes: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = nursery({"kind": "srun", **launcher}, monkeypatch, **changes)
    assert isinstance(found, str) and why in found


def test_one_rank_of_one_trial_shares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = {"slots_per_trial": 2, "slots_per_node": 1}
    for changes in ({"worker": {"mode": "per_trial"}}, {"searcher": {"max_trials": 1}}):
        found = nursery({"kind": "srun"}, monkeypatch, resources=alone, **changes)
        assert isinstance(found, str) and "nothing is shared" in found
        assert isinstance(nursery({"kind": "srun"}, monkeypatch, **changes), Launch)


def test_steps_of_a_group_name_its_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """And ask for their own part of what the job has, which is for more nodes than theirs."""
    monkeypatch.setenv("SLURM_GPUS", "8")
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "2")
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "9000")
    hosts = ("n3", "n4")
    srun = planned({"kind": "srun"}, hosts=hosts)
    assert {"--nodes=2", "--nodelist=n3,n4", "--mem=9000M", "--gres=gpu:2"} <= set(srun.argv)
    assert "SLURM_GPUS" not in srun.environment
    mpirun = planned({"kind": "mpirun"}, hosts=hosts).argv
    assert mpirun[mpirun.index("-host") + 1] == "n3:2,n4:2"
    mpiexec = planned({"kind": "mpiexec"}, hosts=hosts).argv
    assert mpiexec[mpiexec.index("-hosts") + 1] == "n3,n4"
    for kind in ("srun", "mpirun", "mpiexec"):
        assert not {"-host", "-hosts", "--nodelist"} & set(planned({"kind": kind}).argv)


def test_binding_is_what_the_site_says_last() -> None:
    for kind, ours, theirs in (
        ("srun", ["--cpu-bind=none"], ["--cpu-bind=ldoms"]),
        ("mpirun", ["--bind-to", "none"], ["--bind-to", "numa"]),
    ):
        argv = list(planned({"kind": kind, "args": theirs}).argv)
        places = [argv.index(words[-1]) for words in (ours, theirs)]
        assert places == sorted(places), f"of {kind}'s options the last one counts"
        assert not set(theirs[-1:]) & set(planned({"kind": kind}).argv)


@pytest.mark.skipif(
    shutil.which("mpirun") is None or (psutil.cpu_count(logical=False) or 1) < 2,
    reason="no mpirun on this machine, or one core",
)
def test_open_mpi_binds_ranks_as_the_site_says() -> None:
    def cores(*args: str) -> list[str]:
        launcher = {"kind": "mpirun", "args": ["--allow-run-as-root", *args]}
        plan = planned(launcher, slots_per_trial=2, nodes=1, slots_per_node=2)
        argv = [*plan.argv[: -len(RANK.split())], "grep", "Cpus_allowed_list", "/proc/self/status"]
        done = subprocess.run(argv, capture_output=True, text=True, env=os.environ, timeout=120)
        assert done.returncode == 0, done.stderr
        return [line.split()[1] for line in done.stdout.splitlines()]

    apart, free = cores("--bind-to", "core"), cores()
    assert len(set(apart)) == 2 and len(set(free)) == 1 and not set(apart) & set(free)


def test_srun_leaves_mpi_to_those_who_use_it_and_to_the_site() -> None:
    assert "--mpi=none" in planned({"kind": "srun"}).argv
    assert not any(word.startswith("--mpi") for word in planned({"kind": "srun"}, "mpi").argv)
    said = planned({"kind": "srun", "args": ["--mpi=pmi2"]}).argv
    assert said.index("--mpi=pmi2") > said.index("--mpi=none"), "srun takes the last"


@pytest.mark.parametrize(
    ("memory", "granted", "lane_0", "lane_1"),
    [
        # what the config says of memory; else a part of what there is
        (1 << 30, {}, "--mem=2048M", ""),
        (None, {"SLURM_MEM_PER_NODE": "9000"}, "--mem=4500M", ""),
        (None, {"SLURM_MEM_PER_CPU": "500"}, "--mem-per-cpu=500M", ""),
        (None, {}, "--mem=0", ""),
        (None, {"SLURM_GPUS_ON_NODE": "8", "SLURM_GPUS_PER_NODE": "8"}, "--gres=gpu:4", ""),
        (None, {"SLURM_GPUS_ON_NODE": "1"}, "--overlap --gres=gpu:1", ""),
        # no devices that Slurm knows of: those that the worker sees
        (None, {"CUDA_VISIBLE_DEVICES": "0,1,2"}, "0", "1,2"),
        (None, {"ROCR_VISIBLE_DEVICES": "5"}, "5", "5"),
    ],
)
def test_each_lane_gets_its_part_of_the_allocation(
    memory: int | None,
    granted: dict[str, str],
    lane_0: str,
    lane_1: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in granted.items():
        monkeypatch.setenv(name, value)
    alone: dict[str, Any] = {
        "slots_per_trial": 2,
        "nodes": 1,
        "slots_per_node": 2,
        "memory_per_slot": memory,
    }
    steps = [planned({"kind": "srun"}, lane=lane, **alone) for lane in (0, 1)]
    if lane_1:
        for kind in ("srun", "mpirun", "local"):
            seen = [planned({"kind": kind}, lane=n, **alone).environment for n in (0, 1)]
            [name] = granted
            assert [env[name] for env in seen] == [lane_0, lane_1]
    else:
        for step in steps:
            line = shlex.join(step.argv)
            assert "--cpus-per-task=3 --exact" in line and lane_0 in line
            assert not {"SLURM_MEM_PER_NODE", "SLURM_GPUS_PER_NODE"} & step.environment.keys()


def test_a_step_keeps_the_allocations_own_variables() -> None:
    kept = for_step(
        {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "PMIX_RANK": "2"},
        x.local_site(scheduler="slurm"),
    )
    assert kept == {"SLURM_JOB_ID": "1"}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[object]:
    """Starts shell code as ranks; what is left is killed."""
    running: list[RunningStep] = []

    def begin(code: str, ranks: int = 2) -> RunningStep:
        plan = Launch(
            ("/bin/bash", "-c", code),
            {"PATH": os.environ["PATH"], "D": str(tmp_path)},
            tuple({"RANK": str(rank)} for rank in range(ranks)),
            by_launcher=False,
        )
        running.append(steps.start(plan, tmp_path / "launcher.log", tmp_path))
        return running[-1]

    yield begin
    for step in running:
        step.kill()
        x.until(lambda step=step: not step.running())


def ended(step: RunningStep) -> Exit:
    x.until(lambda: not step.running())
    return step.result()


def test_the_rank_that_failed_first_is_told_from_its_echoes(  # type: ignore[no-untyped-def]
    start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "_PEERS_GRACE_S", 0.2)
    assert ended(start("true")) == Exit(0)
    # rank 0 only says that its peer is gone, and is seen first
    echo = f"[ $RANK = 0 ] && exit {PEER_LOST}; sleep 0.1; kill -KILL $$"
    assert ended(start(echo)) == Exit(137, 1, "SIGKILL")
    # a rank that waits for its peer for ever and hears nothing is killed, and not the cause
    deaf = "trap '' USR2; [ $RANK = 1 ] && exit 4; while :; do sleep 0.05; done"
    assert ended(start(deaf)) == Exit(4, 1, "")


def test_all_ranks_are_told_and_what_they_leave_behind_is_swept_up(start, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    code = "sleep 600 & echo $! > $D/child.$RANK.new; mv $D/child.$RANK.new $D/child.$RANK"
    step = start(code)
    x.until(lambda: len(list(tmp_path.glob("child.?"))) == 2)
    assert ended(step) == Exit(0)
    children = [int(file.read_text()) for file in tmp_path.glob("child.?")]
    x.until(lambda: not any(processes.started(pid) for pid in children))

    # notices that come before a rank can hear them are kept for it
    listen = (
        "import signal, time, pathlib, os\n"
        "time.sleep(0.1)\n"
        "signal.signal(signal.SIGUSR2, lambda *_: os._exit(9))\n"
        "signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR2])\n"
        "time.sleep(600)\n"
    )
    (tmp_path / "listen.py").write_text(listen)
    step = start(f"exec {sys.executable} -ES $D/listen.py")
    step.notify()
    assert ended(step).code == 9


def test_ranks_that_cannot_all_be_started_are_ended(start, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def one_only(*args: object, **options: object) -> subprocess.Popen[bytes]:
        if started:
            raise BlockingIOError(errno.EAGAIN, "no more processes")
        started.append(popen(*args, **options))  # type: ignore[call-overload]
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", one_only)
    try:
        with pytest.raises(BlockingIOError):
            start("sleep 600")
        assert started[0].returncode == -signal.SIGKILL
    finally:
        started[0].kill()
        started[0].wait()


def test_ranks_die_with_their_worker(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, sys, time\n"
        "from hpcdet.launchers.common import Launch\n"
        "from hpcdet.worker.attempts.step import start\n"
        "here = pathlib.Path(sys.argv[1])\n"
        "plan = Launch(('sleep', '600'), os.environ, ({}, {}), False)\n"
        "step = start(plan, here / 'log', here)\n"
        "print(*step.pids, flush=True)\n"
        "time.sleep(600)\n"
    )
    argv = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        pids = [int(pid) for pid in worker.stdout.readline().split()]
        try:
            assert len(pids) == 2 and all(processes.started(pid) for pid in pids)
            worker.kill()
            x.until(lambda: not any(processes.started(pid) for pid in pids))
        finally:
            worker.kill()
            x.strike(pids)


def test_a_launcher_is_spared_the_notice_and_ends_its_ranks_with_the_worker(
    tmp_path: Path,
) -> None:
    """As mpirun: SIGTERM does not reach it, SIGINT ends it; so it is when the worker is killed."""
    launcher = (
        "trap 'touch ended; exit' INT; echo $$ > pid; mv pid up; while :; do sleep 0.05; done"
    )
    code = (
        "import os, pathlib, signal, sys, time\n"
        "from hpcdet.launchers.common import Launch\n"
        "from hpcdet.worker.attempts.step import start\n"
        "here = pathlib.Path(sys.argv[1])\n"
        "argv = ('/bin/bash', '-c', sys.argv[2])\n"
        "plan = Launch(argv, os.environ, ({},), True, signal.SIGINT)\n"
        "step = start(plan, here / 'log', here)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path), launcher]) as worker:
        pids: list[int] = []
        try:
            x.until((tmp_path / "up").exists)
            pids.append(int((tmp_path / "up").read_text()))
            os.kill(pids[0], signal.SIGTERM)
            assert processes.started(pids[0])
            worker.kill()
            x.until(lambda: not processes.started(pids[0]))
            assert (tmp_path / "ended").exists(), "it died of what it must not hear"
        finally:
            worker.kill()
            x.strike(pids)


def test_the_listening_step_writes_down_what_it_hears(tmp_path: Path) -> None:
    argv = launchers.launcher("srun").listener((), ("sh",))
    assert {"--overlap", "--mem=0", "--ntasks=1"} <= set(argv)
    heard = tmp_path / "heard"
    command = [sys.executable, "-m", "hpcdet.worker.listener", str(heard)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as listener:
        assert listener.stdin is not None
        try:
            listener.stdin.write(b"\n")
            listener.stdin.flush()
            x.until(lambda: ignores(listener.pid, signal.SIGUSR1))  # the last thing before it waits
            for notice in (signal.SIGUSR2, signal.SIGTERM):
                listener.send_signal(notice)
                x.until(lambda name=notice.name: heard.exists() and heard.read_text() == name)
            assert listener.poll() is None
            listener.stdin.close()  # as if its worker were gone
            assert listener.wait() == 0
        finally:
            listener.kill()


def test_the_listening_step_listens_where_it_is_given_no_input(tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    command = [sys.executable, "-m", "hpcdet.worker.listener", str(heard)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as listener:
        try:
            x.until(lambda: ignores(listener.pid, signal.SIGUSR1))
            time.sleep(0.2)
            listener.send_signal(signal.SIGTERM)
            x.until(lambda: heard.exists() and heard.read_text() == "SIGTERM")
            assert listener.poll() is None
        finally:
            listener.kill()


def ignores(pid: int, number: signal.Signals) -> bool:
    """Whether a process ignores a signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    [mask] = [line.split()[1] for line in status.splitlines() if line.startswith("SigIgn")]
    return bool(int(mask, 16) >> (number - 1) & 1)
