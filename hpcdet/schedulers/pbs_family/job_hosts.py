"""Hosts of a job, in the file that lists them on its first host."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path


def listed(environ: Mapping[str, str]) -> dict[str, int]:
    """Hosts in their order, each with how many of the file's lines name it; {} without a file."""
    found: dict[str, int] = {}
    try:
        names = Path(environ.get("PBS_NODEFILE", "")).read_text().split()
    except (OSError, UnicodeDecodeError):
        return {}
    for name in names:
        found[name] = found.get(name, 0) + 1
    return found


def node_name(environ: Mapping[str, str]) -> str:
    """See ``backend.InsideFace``. The name that the job's hosts are listed by."""
    here = socket.gethostname()
    short = here.partition(".")[0]
    return next((host for host in listed(environ) if host.partition(".")[0] == short), here)


@dataclass(frozen=True)
class HostDaemons:
    """``backend.RemoteDaemons``: a launcher's daemons on the job's other hosts."""

    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    own: tuple[str, ...] = ()


def daemons(environment: Mapping[str, str], nodes: Collection[str]) -> HostDaemons:
    """Return the daemons on those nodes of this process's job; none without a list of its hosts."""
    if not (hosts := listed(os.environ)):
        return HostDaemons()
    named = ",".join(f"{host}:{lines}" for host, lines in hosts.items() if host in nodes)
    return HostDaemons(environment, ("-host", named), own=("PBS_", "NCPUS", "TMPDIR"))
