"""How the ranks of an attempt find each other: through a file, with no fixed port and no ssh.

Rank 0 lets the system pick a free port and publishes where it listens; the others wait for
the file. Several Slurm nodes may share one host name (a test cluster): loopback is used then.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from hpcdet import __version__
from hpcdet.errors import ConfigError, Unavailable
from hpcdet.store import files
from hpcdet.train import mpi
from hpcdet.train.lifeline import NEVER, Lifeline, tie
from hpcdet.train.ranks import Ranks

PATIENCE_S = 300.0
_LOOPBACK = "127.0.0.1"
_BACKENDS = ("auto", "nccl", "gloo", "mpi")
_OWN_GROUP = re.compile(
    r"process group twice|variable (RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT) expected"
)
_lifeline: Lifeline | None = None


def meet(ranks: Ranks, meeting: Path | None, backend: str = "auto") -> None:
    """Make the default process group of all ranks; alone, none is needed and none is made.

    Args:
        meeting: the attempt's ``rendezvous.json``, which rank 0 makes; None where another
            launcher (``torchrun``) has set ``MASTER_ADDR`` and ``MASTER_PORT``.
        backend: ``nccl``, ``gloo``, ``mpi`` or ``auto`` (NCCL where there is a CUDA device).

    Raises:
        ConfigError: there is no such backend, NCCL or MPI is asked for where it cannot work (no
            device, fewer than ranks, no MPI, another idea of who is there), or there is no place
            to meet.
        Unavailable: the others did not come within ``PATIENCE_S``.
    """
    if backend not in _BACKENDS:
        raise ConfigError(
            f"there is no backend {backend!r}",
            where="distributed.backend",
            hint=f"one of {', '.join(_BACKENDS)}",
        )
    if ranks.world == 1:
        return
    cuda = torch.cuda.is_available() and backend in ("auto", "nccl")
    if backend == "nccl" and not cuda:
        raise ConfigError(
            "there is no CUDA device on this node",
            where="distributed.backend: nccl",
            hint="ask for accelerators, or use backend auto",
        )
    kind = "cpu:gloo,cuda:nccl" if cuda else "gloo"
    if backend == "mpi":
        mpi.prepare(ranks)
        kind = mpi.NAME
    if meeting is None:
        if dist.is_initialized():  # the script, which runs alone, has done it
            return
        if "MASTER_ADDR" not in os.environ:
            raise ConfigError(
                f"{ranks.world} ranks were started, and nobody says where they meet",
                where="environment",
                hint="submit with hpcdet, use torchrun, or set MASTER_ADDR and MASTER_PORT",
            )
        dist.init_process_group(kind, timeout=NEVER)  # that launcher ends all if one is lost
        return
    if dist.is_initialized():
        raise own_group()
    global _lifeline
    store, host = _host(ranks, meeting) if ranks.chief else _visit(ranks, meeting)
    _lifeline = tie(ranks, store, host, PATIENCE_S)
    _pick_interface(ranks, store)
    if cuda:
        _check_devices(ranks, store, backend)
    dist.init_process_group(
        kind,
        store=PrefixStore("hpcdet", store),
        rank=ranks.rank,
        world_size=ranks.world,
        timeout=NEVER,
    )


def own_group() -> ConfigError:
    """What code hears that makes a process group of its own."""
    return ConfigError(
        "hpcdet makes the process group where there are several ranks",
        where="dist.init_process_group",
        hint="leave that line out: core.init and pytorch.init see to it",
    )


def refusal(error: BaseException) -> ConfigError | None:
    """That code makes a process group of its own, if this is torch's word for it."""
    owns = isinstance(error, ValueError) and _OWN_GROUP.search(str(error))
    return own_group() if owns else None


def leave() -> None:
    """Take the process group down, if there is one; the other ranks may go on without this one."""
    global _lifeline
    if _lifeline is not None:
        _lifeline.leave()
        _lifeline = None
    if dist.is_initialized():
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()
        mpi.leave()


def _host(ranks: Ranks, meeting: Path) -> tuple[TCPStore, str]:
    """Rank 0's store, and the address it listens on."""
    # where all ranks share a node, nobody outside it can connect
    interface = _LOOPBACK if ranks.local_world == ranks.world else "0.0.0.0"
    listener = socket.create_server((interface, 0), backlog=2 * ranks.world)
    store = TCPStore(
        _LOOPBACK,
        listener.getsockname()[1],
        world_size=ranks.world,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=PATIENCE_S),
        master_listen_fd=listener.detach(),
    )
    name = socket.gethostname()
    where = {"host": name, "addresses": _addresses(name), "port": store.port, "schema": 1}
    files.replace(meeting, files.canonical({**where, "runs": _runs(ranks)}))
    return store, interface


def _visit(ranks: Ranks, meeting: Path) -> tuple[TCPStore, str]:
    """Rank 0's store, and where rank 0 is reached."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        where = _published(meeting)
        if where:
            _compare(ranks, where.get("runs", {}), where["host"])
        host = where and _reachable(where["host"], where["addresses"], where["port"])
        if where and host:
            store = TCPStore(
                host,
                where["port"],
                world_size=ranks.world,
                is_master=False,
                wait_for_workers=False,
                timeout=timedelta(seconds=PATIENCE_S),
            )
            return store, host
        time.sleep(0.02)
    raise Unavailable(
        f"rank {ranks.rank} could not reach rank 0 within {PATIENCE_S:.0f} s",
        where=str(meeting),
        hint="did rank 0 start, and can the nodes open connections to each other?",
    )


def _published(meeting: Path) -> dict[str, Any] | None:
    with contextlib.suppress(FileNotFoundError):
        os.listdir(meeting.parent)  # a network file system may remember that the file was not there
    value = files.read_json(meeting)
    return value if isinstance(value, dict) else None


def _runs(ranks: Ranks) -> dict[str, str]:
    """What all ranks must have in common before they exchange a byte."""
    return {
        "number of ranks": str(ranks.world),
        "hpcdet": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }


def _compare(ranks: Ranks, first: Mapping[str, str], host: str) -> None:
    """See that rank 0 runs the same.

    Raises:
        ConfigError: it does not.
    """
    mine = _runs(ranks)
    differ = [name for name in first if name in mine and mine[name] != first[name]]
    if differ:
        here, there = (", ".join(f"{name} {one[name]}" for name in differ) for one in (mine, first))
        raise ConfigError(
            f"rank {ranks.rank} has {here}, rank 0 has {there}",
            where=f"{socket.gethostname()} and {host}",
            hint="start all ranks by one launcher, with one interpreter (environment.python)",
        )


def _reachable(host: str, addresses: Sequence[str], port: int) -> str | None:
    """The first of rank 0's names that answers."""
    names = [_LOOPBACK] if host == socket.gethostname() else [host, *addresses]
    for name in names:
        with contextlib.suppress(OSError), socket.create_connection((name, port), timeout=5):
            return name
    return None


def _addresses(host: str) -> list[str]:
    found: list[str] = []
    with contextlib.suppress(OSError):
        infos = socket.getaddrinfo(host, None, family=socket.AF_INET, type=socket.SOCK_STREAM)
        found = [str(info[4][0]) for info in infos]
    routed = _towards("192.0.2.1")  # never sent to: only asks which address leaves this host
    return sorted(
        {address for address in [*found, routed] if not address.startswith("127.")} - {""}
    )


def _towards(address: str) -> str:
    """This host's own address on the way to another; "" where there is no way."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect((address, 9))
        return str(probe.getsockname()[0])
    return ""


def _pick_interface(ranks: Ranks, store: TCPStore) -> None:
    """Tell gloo which network interface leads to the others, unless the site has said so."""
    name = socket.gethostname()
    own = (_addresses(name) or [_LOOPBACK])[0]
    store.set(f"host/{ranks.rank}", f"{name} {own}")
    all_hosts = [store.get(f"host/{rank}").decode().split() for rank in range(ranks.world)]
    others = [address for host, address in all_hosts if host != name]
    interface = _interface(_towards(others[0])) if others else "lo"
    if interface:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)


def device_of(ranks: Ranks) -> torch.device:
    """The accelerator of a rank: its place on the node modulo what it sees."""
    if torch.cuda.is_available():
        return torch.device("cuda", ranks.local % torch.cuda.device_count())
    return torch.device("cpu")


def _device_id(ranks: Ranks) -> str:
    """Names the accelerator of this rank, whatever number it has for this process."""
    return str(torch.cuda.get_device_properties(device_of(ranks)).uuid)


def _check_devices(ranks: Ranks, store: Store, backend: str) -> None:
    """NCCL wants an accelerator for each rank; what it says otherwise names neither."""
    store.set(f"device/{ranks.rank}", _device_id(ranks))
    owners: dict[str, list[int]] = {}
    for rank in range(ranks.world):
        owners.setdefault(store.get(f"device/{rank}").decode(), []).append(rank)
    shared = next((own for own in owners.values() if len(own) > 1), None)
    if shared is not None:
        raise ConfigError(
            f"ranks {', '.join(map(str, shared))} of {ranks.world} share one accelerator "
            f"({len(owners)} are there), which NCCL cannot do",
            where=f"distributed.backend: {backend}, on {socket.gethostname()}",
            hint="ask for as many accelerators as resources.slots_per_trial, or for fewer slots; "
            "distributed.backend: gloo lets ranks share one",
        )


def _interface(address: str) -> str:
    """The network interface that has an IPv4 address; "" if none has."""
    import fcntl

    get_address = 0x8915  # SIOCGIFADDR
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(probe.fileno(), get_address, request)
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return ""
