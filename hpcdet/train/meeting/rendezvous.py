"""How the ranks of an attempt find each other: through a file, with no fixed port and no ssh.

Rank 0 draws the attempt's secret and publishes it in a file that only its user can read, with
where it listens; the others wait for that. Nothing is exchanged before both sides of a connection
have proven the secret (``meeting``). Several Slurm nodes may share one host name (a test cluster).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from hpcdet import __version__
from hpcdet.errors import ConfigError, Unavailable
from hpcdet.process.console import say, say_error
from hpcdet.process.ranks import Ranks
from hpcdet.store.fs import files
from hpcdet.train.meeting import gloo, proof
from hpcdet.train.meeting.liveness import NEVER, Lifeline
from hpcdet.train.meeting.process_group_store import AttemptStore
from hpcdet.train.meeting.rank0_listener import KNOCK_S, Door, knock

PATIENCE_S = 300.0
_BACKENDS = ("auto", "nccl", "gloo", "mpi")
_OWN_GROUP = re.compile(
    r"process group twice|variable (RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT) expected"
)
_UNPROVEN = (
    "warning: these ranks were started without hpcdet, and do not prove to each other who they "
    "are: whoever reaches the ports of torch's store and of gloo can take the place of one "
    "(docs/explanation/security.md)"
)
_lifeline: Lifeline | None = None
_forgetting: threading.Thread | None = None


@dataclass(frozen=True)
class _Met:
    """The attempt's secret, and the connections to all who have proven it, by rank."""

    secret: bytes
    connections: dict[int, socket.socket]


def meet(
    ranks: Ranks,
    meeting: Path | None,
    backend: str = "auto",
    tell: Callable[[BaseException], None] = say_error,
) -> None:
    """Make the default process group of all ranks; alone, none is needed and none is made.

    Args:
        meeting: the attempt's ``rendezvous.json``, which rank 0 makes; None where another
            launcher (``torchrun``) has set ``MASTER_ADDR`` and ``MASTER_PORT``.
        backend: ``nccl``, ``gloo``, ``mpi`` or ``auto`` (NCCL where there is a CUDA device).
        tell: called with ``Unproven``, now or when another group is made, before it is raised.

    Raises:
        ConfigError: there is no such backend, NCCL or MPI is asked for where it cannot work (no
            device, fewer than ranks, no MPI, another idea of who is there), or there is no place
            to meet.
        Unavailable: the others did not come within ``PATIENCE_S``.
        Unproven: over gloo, they could not make sure who they are.
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
        from hpcdet.train import mpi

        mpi.prepare(ranks)
        kind = mpi.NAME
    if meeting is None:
        if ranks.chief:
            say(_UNPROVEN)
        if dist.is_initialized():  # the script, which runs alone, has done it
            return
        if "MASTER_ADDR" not in os.environ:
            raise ConfigError(
                f"{ranks.world} ranks were started, and no address to meet at is given",
                where="environment",
                hint="submit with hpcdet, use torchrun, or set MASTER_ADDR and MASTER_PORT",
            )
        dist.init_process_group(kind, timeout=NEVER)  # that launcher ends all if one is lost
        return
    if dist.is_initialized():
        raise own_group()
    global _lifeline
    if _lifeline is not None:  # of a group that the code has taken down
        leave()
    met = _host(ranks, meeting) if ranks.chief else _visit(ranks, meeting)
    _lifeline = Lifeline(met.connections)
    store = AttemptStore(_lifeline, ranks.chief)
    gloo.guard(gloo.Attempt(met.secret, _own_address(ranks, store), _lifeline, tell))
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
    """Return the error for code that makes a process group of its own."""
    return ConfigError(
        "hpcdet makes the process group where there are several ranks",
        where="dist.init_process_group",
        hint="remove this call: core.init and pytorch.init make the group",
    )


def refusal(error: BaseException) -> ConfigError | None:
    """Return the error of ``own_group`` if torch's ``error`` means that; else None."""
    owns = isinstance(error, ValueError) and _OWN_GROUP.search(str(error))
    return own_group() if owns else None


def leave() -> None:
    """Take the process group down, if there is one; the other ranks may go on without this one."""
    global _lifeline, _forgetting
    if _lifeline is not None:
        _lifeline.leave()
    if dist.is_initialized():
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()
        if (mpi := sys.modules.get("hpcdet.train.mpi")) is not None:  # who uses it imports it
            mpi.leave()
    if _lifeline is not None:
        _lifeline.close()
        gloo.release()
        _lifeline = None
    if _forgetting is not None:  # it would take the secret of the next meeting out of that file
        _forgetting.join()
        _forgetting = None


def _host(ranks: Ranks, meeting: Path) -> _Met:
    """On rank 0: publish its address and the facts that others need, and let them in."""
    name = socket.gethostname()
    # where all ranks share a node, nobody outside it can connect
    addresses = [] if ranks.local_world == ranks.world else _addresses(name) or [gloo.LOOPBACK]
    secret = proof.draw()
    with Door(addresses, ranks.world) as door:
        where: dict[str, Any] = {"host": name, "addresses": addresses, "ports": door.ports}
        where |= {"folder": door.folder, "runs": _runs(ranks), "schema": 2}
        files.replace(meeting, files.canonical({**where, "secret": secret.hex()}))
        others = door.admit(secret, ranks.world, PATIENCE_S)
    # all who need the secret know it; nobody has to wait until the file is without it
    global _forgetting
    _forgetting = threading.Thread(target=_forget, args=(meeting, where), name="rendezvous")
    _forgetting.start()
    return _Met(secret, others)


def _forget(meeting: Path, where: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError):  # it is of no use to anybody who can read it
        files.replace(meeting, files.canonical(where))


def _visit(ranks: Ranks, meeting: Path) -> _Met:
    """On another rank: find rank 0, and prove the secret to each other."""
    deadline, pause_s = time.monotonic() + PATIENCE_S, 0.005
    while (left_s := deadline - time.monotonic()) > 0:
        where = _published(meeting)
        if where:
            _compare(ranks, where.get("runs", {}), where["host"])
            secret = bytes.fromhex(where["secret"])
            doors: list[Path | tuple[str, int]] = [Path(where["folder"])] * bool(where["folder"])
            doors += zip(where["addresses"], where["ports"], strict=True)
            for door in doors:
                if connection := knock(door, secret, ranks.rank, min(KNOCK_S, left_s)):
                    return _Met(secret, {0: connection})
        time.sleep(pause_s)
        pause_s = min(0.02, 2 * pause_s)
    raise Unavailable(
        f"rank {ranks.rank} could not reach rank 0 within {PATIENCE_S:.0f} s",
        where=str(meeting),
        hint="did rank 0 start, and can the nodes open connections to each other? Ranks of one "
        "node need a folder for temporary files in common",
    )


def _published(meeting: Path) -> dict[str, Any] | None:
    with contextlib.suppress(FileNotFoundError):
        os.listdir(meeting.parent)  # a network file system may remember that the file was not there
    value = files.read_json(meeting)
    return value if isinstance(value, dict) and "secret" in value else None


def _runs(ranks: Ranks) -> dict[str, str]:
    """Return what all ranks must have in common before they exchange a byte."""
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


def _addresses(host: str) -> list[str]:
    """List this host's addresses for others: by the site's interface, else by name and route.

    Failing both, wherever it has an address.

    Raises:
        ConfigError: the site names an interface that is not here, or has no address.
    """
    if named := os.environ.get(gloo.INTERFACES):
        return [_on_named(name) for name in named.split(",")]
    found: list[str] = []
    with contextlib.suppress(OSError):
        infos = socket.getaddrinfo(host, None, family=socket.AF_INET, type=socket.SOCK_STREAM)
        found = [one for info in infos if _is_own(one := str(info[4][0]))]
    found.append(_towards("192.0.2.1"))  # never sent to: only asks which address leaves this host
    return _outside(found) or _outside(_on(name) for _, name in socket.if_nameindex())


def _outside(addresses: Iterable[str]) -> list[str]:
    return sorted({one for one in addresses if one and not one.startswith("127.")})


def _towards(address: str) -> str:
    """This host's own address on the way to another; "" where there is no way."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect((address, 9))
        return str(probe.getsockname()[0])
    return ""


def _own_address(ranks: Ranks, store: Store) -> str:
    """This host's address on the way to the others'; loopback where they share it."""
    if ranks.local_world == ranks.world:
        return gloo.LOOPBACK
    name = socket.gethostname()
    own = (_addresses(name) or [gloo.LOOPBACK])[0]
    store.set(f"host/{ranks.rank}", f"{name} {own}")
    told = store.multi_get([f"host/{rank}" for rank in range(ranks.world)])
    others = [address for host, address in (one.decode().split() for one in told) if host != name]
    return _towards(others[0]) or own if others else gloo.LOOPBACK


def device_of(ranks: Ranks) -> torch.device:
    """The accelerator of a rank: its place on the node modulo what it sees."""
    if torch.cuda.is_available():
        return torch.device("cuda", ranks.local % torch.cuda.device_count())
    return torch.device("cpu")


def _device_id(ranks: Ranks) -> str:
    """Names the accelerator of this rank, whatever number it has for this process."""
    return str(torch.cuda.get_device_properties(device_of(ranks)).uuid)


def _check_devices(ranks: Ranks, store: Store, backend: str) -> None:
    """Refuse NCCL where ranks share an accelerator, and name them; NCCL's own error does not."""
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


def _is_own(address: str) -> bool:
    """True where this host has the address: its name may stand for another one in its files."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.bind((address, 0))
        return True
    return False


def _on_named(interface: str) -> str:
    """The IPv4 address of an interface that the site names.

    Raises:
        ConfigError: there is none.
    """
    if address := _on(interface):
        return address
    with_address = [name for _, name in socket.if_nameindex() if _on(name)]
    raise ConfigError(
        f"{socket.gethostname()} has no interface {interface!r} with an IPv4 address",
        where=f"{gloo.INTERFACES}={os.environ[gloo.INTERFACES]}",
        hint=f"name one that it has ({', '.join(with_address)}), or none: unset the variable",
    )


def _on(interface: str) -> str:
    """The IPv4 address of a network interface; "" if it has none."""
    get_address = 0x8915  # SIOCGIFADDR
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", interface.encode()[:15])
        with contextlib.suppress(OSError):
            return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), get_address, request)[20:24])
    return ""
