"""Ranks on two hosts: network namespaces with names of their own and one wire between them."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpcdet.store.folder.layout import TrialPaths
from hpcdet.store.folder.records import Claim, Verdict
from tests import TOP, ranks
from tests import experiments as x


def why_not() -> str:
    """Why there can be no second host here; "" if there can."""
    tools = ("ip", "nsenter", "unshare")
    if os.geteuid() != 0 or any(shutil.which(tool) is None for tool in tools):
        return "network namespaces need root, iproute2 and util-linux"
    name = f"hpcdet-try-{os.getpid()}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return f"no network namespaces: {tried.stderr}" if tried.returncode else ""


pytestmark = [
    pytest.mark.xdist_group("mpi"),
    pytest.mark.skipif(bool(reason := why_not()), reason=reason or "there are"),
]


@dataclass(frozen=True)
class Host:
    """A network namespace; ``name`` is its host name, which nobody can look up."""

    name: str
    address: str

    def argv(self, *command: str) -> list[str]:
        """A command on this host."""
        named = f'hostname {self.name}; exec "$@"'
        net = f"--net=/run/netns/{self.name}"
        return ["nsenter", net, "unshare", "--uts", "sh", "-c", named, "sh", *command]

    def sent(self) -> int:
        """Bytes that went over the wire."""
        shown = ip("-n", self.name, "-s", "-j", "link", "show", "wire")
        return int(json.loads(shown)[0]["stats64"]["tx"]["bytes"])


def ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    pair = (Host(f"hd-a-{os.getpid()}", "10.213.7.1"), Host(f"hd-b-{os.getpid()}", "10.213.7.2"))
    try:
        for host in pair:
            ip("netns", "add", host.name)
            ip("-n", host.name, "link", "set", "lo", "up")
        first, second = (host.name for host in pair)
        peer = ("peer", "name", "wire", "netns", second)
        ip("-n", first, "link", "add", "wire", "type", "veth", *peer)
        for host in pair:
            ip("-n", host.name, "address", "add", f"{host.address}/30", "dev", "wire")
            ip("-n", host.name, "link", "set", "wire", "up")
            ip("-n", host.name, "route", "add", "default", "dev", "wire")
        yield pair
    finally:
        for host in pair:
            subprocess.run(["ip", "netns", "del", host.name], capture_output=True, check=False)


def make(folder: Path, backend: str) -> TrialPaths:
    model = x.write_model(folder / "model")
    trial = ranks.experiment(
        folder / "EXP",
        code=model,
        ranks=2,
        hparams={"x": 0.5, "global_batch_size": 32},
        entrypoint="model_def:Model",
        until=8,
        distributed={"backend": backend},
    )
    Claim("0001-0000.0", "here").write_once(trial.attempt(1).claim)
    return trial


def wait(processes: list[subprocess.Popen[bytes]], trial: TrialPaths) -> None:
    """Until all have ended well, and the trial with them."""
    story = trial.attempt(1).logs
    try:
        for process in processes:
            code = process.wait(ranks.PATIENCE_S)
            assert code == 0, [log.read_text() for log in story.glob("*")]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    verdict = Verdict.read(trial.attempt(1).verdict)
    assert verdict is not None and verdict.cause == "completed"


def environment(**own: str) -> Mapping[str, str]:
    return {**os.environ, "PYTHONPATH": str(TOP), **own}


def test_ranks_on_two_hosts_meet_over_the_wire_between_them(
    hosts: tuple[Host, Host], tmp_path: Path
) -> None:
    trial = make(tmp_path, "gloo")
    rank = (sys.executable, "-m", "hpcdet.attempt", str(trial.root.parent.parent), "1", "1")
    before = [host.sent() for host in hosts]
    started = []
    for number, host in enumerate(hosts):
        own = {"RANK": str(number), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        env = environment(NODE_RANK=str(number), **own)
        started.append(subprocess.Popen(host.argv(*rank), env=env, stdin=subprocess.DEVNULL))
    wait(started, trial)
    met = json.loads(trial.attempt(1).rendezvous.read_text())
    assert (met["host"], met["addresses"]) == (hosts[0].name, [hosts[0].address])
    assert all(host.sent() - was > 8_000 for host, was in zip(hosts, before, strict=True))


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun on this machine")
def test_mpi_does_so_too(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    """Mpirun has a shell for the other host, as it would have ssh."""
    trial = make(tmp_path, "mpi")
    shell = tmp_path / "shell"
    other = shlex.join(hosts[1].argv("sh", "-c"))
    shell.write_text(f'#!/bin/sh\nshift\nexec {other} "$*"\n')
    shell.chmod(0o700)
    mpirun = (
        *("mpirun", "--allow-run-as-root", "-np", "2", "--map-by", "ppr:1:node"),
        *("--host", ",".join(host.name for host in hosts), "--mca", "plm_rsh_agent", str(shell)),
        *("--mca", "btl", "self,tcp"),
        *(sys.executable, "-m", "hpcdet.attempt", str(trial.root.parent.parent), "1", "1"),
    )
    before = [host.sent() for host in hosts]
    with (tmp_path / "launcher.log").open("wb") as log:
        started = subprocess.Popen(
            hosts[0].argv(*mpirun),
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    wait([started], trial)
    assert all(host.sent() - was > 8_000 for host, was in zip(hosts, before, strict=True))
