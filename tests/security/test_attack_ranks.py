"""Another user of the nodes attacks the ranks of a trial while they meet and train.

``HPCDET_ATTACK_S`` says for how long (``make attack``: 60); by default for one attempt.
"""

from __future__ import annotations

import multiprocessing
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path

import psutil
import pytest

from hpcdet.launchers import mpirun
from hpcdet.store.folder.layout import TrialPaths
from hpcdet.store.folder.records import NO_FAULT, Claim, Reason, Verdict
from hpcdet.store.trials import progress
from hpcdet.worker.attempts import exit_reason
from tests import experiments as x
from tests import intruders, ranks
from tests.dose import ATTACK_S
from tests.intruders import Booty
from tests.train.test_hosts import Host, environment, hosts, why_not

__all__ = ["hosts"]  # a fixture
pytestmark = [
    pytest.mark.xdist_group("mpi"),
    pytest.mark.skipif(bool(reason := why_not()), reason=reason or "there are"),
]
# gloo's ports are open for so long before anybody connects: an intruder is always the first
SLOW = """
import runpy, time
from hpcdet.train.meeting import gloo
make = gloo._Gloo.create_device
def slowly(**options):
    device = make(**options)
    time.sleep(0.5)
    return device
gloo._Gloo.create_device = slowly
"""
CARELESS = """
import contextlib
gloo.ProvenGloo._prove = lambda *_: []
gloo.port_filter.open_until_connected = contextlib.nullcontext
gloo.port_filter.behind = lambda make: make()
"""
RUN = 'runpy.run_module("hpcdet.attempt", run_name="__main__", alter_sys=False)\n'


def make(folder: Path, backend: str = "gloo", pace_s: float = 0.0) -> TrialPaths:
    return ranks.experiment(
        folder / "EXP",
        code=x.write_model(folder / "model", pace_s=pace_s),
        ranks=2,
        hparams={"x": 0.5, "global_batch_size": 32},
        entrypoint="model_def:Model",
        until=8,
        distributed={"backend": backend},
    )


@contextmanager
def attempt(
    trial: TrialPaths, number: int, places: list[Host], code: str
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The two ranks of an attempt, each in its place."""
    Claim("0001-0000.0", "here").write_once(trial.attempt(number).claim)
    command = (sys.executable, "-c", code, str(trial.root.parent.parent), "1", str(number))
    together = places[0] is places[1]
    processes = []
    try:
        for rank, host in enumerate(places):
            env = environment(
                RANK=str(rank),
                WORLD_SIZE="2",
                LOCAL_RANK=str(rank if together else 0),
                LOCAL_WORLD_SIZE="2" if together else "1",
                NODE_RANK="0" if together else str(rank),
            )
            processes.append(
                subprocess.Popen(host.argv(*command), env=env, stdin=subprocess.DEVNULL)
            )
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def train(trial: TrialPaths, number: int, places: list[Host], code: str) -> Reason:
    """An attempt from start to end; why it ended, as its worker would judge it."""
    with attempt(trial, number, places, code) as processes:
        codes = [process.wait(ranks.PATIENCE_S) for process in processes]
    paths = trial.attempt(number)
    worst = next((code for code in codes if code), 0)
    first_step = progress.of(paths).first_step
    seen = exit_reason.Evidence(Verdict.read(paths.verdict), None, worst, first_step=first_step)
    return exit_reason.judge(seen)[0]


@contextmanager
def attack(places: list[Host]) -> Iterator[tuple[list[Booty], Event]]:
    """An intruder in each place; what they got is known at the end of the block.

    The event is set as soon as one has got more than proofs.
    """
    fork = multiprocessing.get_context("fork")
    besiegers, got, rich = [], list[Booty](), fork.Event()
    for host in dict.fromkeys(places):
        quits, quit_ = fork.Pipe(duplex=False)
        hears, tells = fork.Pipe(duplex=False)
        process = fork.Process(
            target=intruders.besiege, args=(f"/run/netns/{host.name}", quits, tells, rich)
        )
        process.start()
        besiegers.append((process, quit_, hears))
    try:
        yield got, rich
        for _, quit_, hears in besiegers:
            quit_.send(None)
            assert hears.poll(60), "the intruder is gone"
            got.append(hears.recv())
    finally:
        for process, *_ in besiegers:
            process.kill()
            process.join()


@pytest.mark.parametrize("count", [1, 2], ids=["one host", "two hosts"])
def test_who_attacks_the_ranks_gets_nothing_and_costs_nothing(
    hosts: tuple[Host, Host], tmp_path: Path, count: int
) -> None:
    """And once he stops, the trial ends as if nothing had been."""
    places = [hosts[0], hosts[count - 1]]
    trials, reasons = [make(tmp_path / "1")], list[Reason]()

    def go_on() -> None:
        if reasons[-1:] == ["completed"]:
            trials.append(make(tmp_path / f"{len(trials) + 1}"))
        number = len(trials[-1].attempts()) + 1
        reasons.append(train(trials[-1], number, places, SLOW + RUN))

    with attack(places) as (got, _):
        until = time.monotonic() + ATTACK_S
        while not reasons or time.monotonic() < until:
            go_on()
    while reasons[-1] != "completed":
        go_on()
        assert len(reasons) < 60, reasons
    print(reasons, [(len(one.ports), one.connections, one.proofs) for one in got])
    story = [log.read_text() for log in sorted(tmp_path.glob("*/EXP/trials/*/attempts/*/logs/*"))]
    assert reasons[0] == "unproven", (reasons, story)
    assert set(reasons) <= NO_FAULT | {"completed"}, (reasons, story)
    for booty in got:
        assert booty.ports and not booty.more_than_proofs, booty
        assert not booty.said and not booty.sockets, booty
    assert sum(booty.proofs for booty in got) > 0, got
    once = ranks.run(make(tmp_path / "undisturbed"), 2).verdict()
    verdicts = [once, *(Verdict.read(trial.attempts()[-1].verdict) for trial in trials)]
    assert all(one is not None and one.cause == "completed" for one in verdicts)
    assert len({one.digest for one in verdicts if one}) == 1


def test_without_the_proofs_he_is_a_rank(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    """The same attack on the same ranks, which do not ask gloo's peers who they are."""
    places = [hosts[0], hosts[0]]
    trial = make(tmp_path)
    with attack(places) as (got, rich):
        for number in range(1, 9):  # gloo's addresses decide whether he is one that is sent to
            with attempt(trial, number, places, SLOW + CARELESS + RUN) as processes:
                until = time.monotonic() + 30
                while time.monotonic() < until and not rich.wait(0.1):
                    if any(process.poll() is not None for process in processes):
                        break
            if rich.is_set():
                break
    assert any(booty.more_than_proofs for booty in got), got


def listening(pid: int) -> set[str]:
    """Addresses at which a process waits for connections, on whichever host it is."""
    process = Path(f"/proc/{pid}")
    own = {str(fd.readlink()) for fd in (process / "fd").iterdir() if fd.is_symlink()}
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in (process / "net" / name).read_text().splitlines()[1:]
    ]
    here = [row for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own]
    return {row[1].partition(":")[0] for row in here}


@contextmanager
def over_mpi(trial: TrialPaths, host: Host) -> Iterator[list[psutil.Process]]:
    """Two ranks that mpirun starts on a host, as a worker does; by the end they have ended well.

    Given are mpirun and the ranks, once they train.
    """
    Claim("0001-0000.0", "here").write_once(trial.attempt(1).claim)
    folder = trial.root.parent.parent
    two = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2")
    command = (*two, sys.executable, "-m", "hpcdet.attempt", str(folder), "1", "1")
    env = environment(**dict([mpirun._SHARED_MEMORY]))
    with (folder / "launcher.log").open("wb") as log:
        started = subprocess.Popen(
            host.argv(*command), env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        x.until(lambda: progress.of(trial.attempt(1)).first_step)
        below = psutil.Process(started.pid).children(recursive=True)
        yield [psutil.Process(started.pid), *below]
        assert started.wait(ranks.PATIENCE_S) == 0, (folder / "launcher.log").read_text()
    finally:
        started.kill()
        started.wait()


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun on this machine")
def test_junk_at_the_ports_of_mpi_changes_nothing(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    """On one node its ranks speak through shared memory; mpirun listens, and gloo on loopback."""
    attack_s = max(3.0, ATTACK_S)
    once, disturbed = make(tmp_path / "1", "mpi"), make(tmp_path / "2", "mpi", attack_s / 8)
    with over_mpi(once, hosts[0]):
        pass
    with over_mpi(disturbed, hosts[0]) as processes, attack([hosts[0]]) as (got, _):
        found = {one.name(): listening(one.pid) for one in processes}
        time.sleep(attack_s)
    loopback = "0100007F"
    assert any(at - {loopback} for name, at in found.items() if name == "mpirun"), found
    assert not any(at - {loopback} for name, at in found.items() if name != "mpirun"), found
    assert got[0].connections and not got[0].sockets, got
    verdicts = [Verdict.read(trial.attempt(1).verdict) for trial in (once, disturbed)]
    assert all(one is not None and one.cause == "completed" for one in verdicts)
    assert len({one.digest for one in verdicts if one}) == 1
