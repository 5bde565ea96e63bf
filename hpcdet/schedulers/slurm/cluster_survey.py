"""The survey of a Slurm cluster, for ``hpcdet site init``: five commands, none of which changes it.

``scontrol show config`` and ``show partition``, ``sinfo`` for the shapes of nodes, ``sacctmgr``
for the user's accounts and limits, ``srun --mpi=list`` for the interfaces of MPI.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hpcdet.errors import Unavailable
from hpcdet.schedulers.common.survey import ClusterSurvey, QueueSurvey
from hpcdet.schedulers.slurm.answers import slurm_text
from hpcdet.schedulers.slurm.answers.slurm_text import parse_config
from hpcdet.schedulers.slurm.slurm_commands import run

SHAPES = ("sinfo", "-h", "-e", "-o", "%R|%D|%c|%m|%G")
"""Partition, nodes, cores, MiB and accelerators of each group of nodes that are alike."""
_LIMITS = ("Account", "MaxJobs")
_GPU = re.compile(r"(?:^|,)gpu(?::(?P<kind>[^:(,]+))?:(?P<count>\d+)")
_ENDS = ("REQUEUE", "CANCEL", "CHECKPOINT")


@dataclass(frozen=True)
class NodeShape:
    """A group of nodes that are alike; ``memory`` in MiB."""

    nodes: int
    cpus: int
    memory: int
    gpus: int
    kind: str


def survey() -> ClusterSurvey:
    """Ask the cluster. Raises Unavailable: ``scontrol`` or ``sinfo`` gives no answer."""
    config = parse_config(_said("scontrol", "show", "config"))
    cluster = config.get("ClusterName", "slurm")
    rows = partitions(_said("scontrol", "--oneliner", "show", "partition"))
    limits = _limits(cluster) if config.get("AccountingStorageType", "").endswith("dbd") else []
    return ClusterSurvey(
        name=cluster,
        scheduler=f"Slurm {config.get('SLURM_VERSION', '')}".strip(),
        parent="generic-slurm",
        detect={"scontrol": "ClusterName", "match": f"^{re.escape(cluster)}$"},
        queues=queues(rows, shapes(_said(*SHAPES)), config.get("PreemptType", "")),
        accounts=tuple(dict.fromkeys(row["Account"] for row in limits if row["Account"])),
        max_running=_most(row["MaxJobs"] for row in limits),
        remarks=tuple(_interfaces()),
    )


def partitions(text: str) -> list[dict[str, str]]:
    """Parse ``scontrol --oneliner show partition``."""
    rows = (dict(word.partition("=")[::2] for word in line.split()) for line in text.splitlines())
    return [row for row in rows if row.get("PartitionName")]


def shapes(text: str) -> dict[str, list[NodeShape]]:
    """Parse the answer to ``SHAPES``, by partition."""
    found: dict[str, list[NodeShape]] = {}
    for line in text.splitlines():
        parts = [part.strip() for part in line.split("|")]
        if len(parts) != len(SHAPES[-1].split("|")):
            continue
        name, nodes, cpus, memory, gres = parts
        if not (nodes.isdecimal() and cpus.isdecimal() and memory.isdecimal()):
            continue
        gpus = list(_GPU.finditer(gres))
        count = sum(int(one["count"]) for one in gpus)
        kind = gpus[0]["kind"] or "" if gpus else ""
        shape = NodeShape(int(nodes), int(cpus), int(memory), count, kind)
        found.setdefault(name, []).append(shape)
    return found


def queues(
    rows: Iterable[Mapping[str, str]], nodes: Mapping[str, list[NodeShape]], preempts: str
) -> tuple[QueueSurvey, ...]:
    """Return the partitions; ``preempts`` is Slurm's PreemptType."""
    rows = list(rows)
    return tuple(_queue(row, rows, nodes.get(row["PartitionName"], []), preempts) for row in rows)


def _queue(
    row: Mapping[str, str], rows: list[Mapping[str, str]], nodes: list[NodeShape], preempts: str
) -> QueueSurvey:
    gpus = {(shape.gpus, shape.kind) for shape in nodes}
    count, kind = next(iter(gpus)) if len(gpus) == 1 else (min((n for n, _ in gpus), default=0), "")
    mode = row.get("PreemptMode", "OFF")
    return QueueSurvey(
        name=row["PartitionName"],
        default=row.get("Default") == "YES",
        nodes=sum(shape.nodes for shape in nodes),
        min_nodes=max(1, _count(row.get("MinNodes", "")) or 1),
        max_nodes=_count(row.get("MaxNodes", "")),
        max_walltime_s=slurm_text.seconds(row.get("MaxTime", "")),
        whole_nodes=row.get("OverSubscribe") == "EXCLUSIVE",
        preemptible=mode in _ENDS and not preempts.endswith("none") and _outranked(row, rows),
        suspends="SUSPEND" in mode or "GANG" in mode,
        cpus_per_node=min((shape.cpus for shape in nodes), default=None),
        memory_mib=min((shape.memory for shape in nodes), default=None),
        slots_per_node=count,
        accelerator=kind,
        directives={"gpus-per-node": "{{ slots_per_node }}"} if count else {},
    )


def _outranked(row: Mapping[str, str], rows: list[Mapping[str, str]]) -> bool:
    """True if a partition of a higher tier has nodes of this one."""
    mine = set(slurm_text.hosts(row.get("Nodes", "")))
    tier = _count(row.get("PriorityTier", "")) or 0
    return any(
        (_count(other.get("PriorityTier", "")) or 0) > tier
        and mine.intersection(slurm_text.hosts(other.get("Nodes", "")))
        for other in rows
    )


def _limits(cluster: str) -> list[dict[str, str]]:
    """Return the user's associations, that of the default account first; empty if none is told."""
    user = pwd.getpwuid(os.getuid()).pw_name
    asked = ("sacctmgr", "--noheader", "--parsable2", "show")
    try:
        said = _said(
            *asked, "assoc", f"user={user}", f"cluster={cluster}", f"format={','.join(_LIMITS)}"
        )
        default = _said(*asked, "user", user, "format=DefaultAccount").strip()
    except Unavailable:
        return []  # sites hide it, or the database is away
    rows = [dict(zip(_LIMITS, line.split("|"), strict=False)) for line in said.splitlines()]
    whole = [row for row in rows if row.keys() == set(_LIMITS)]
    return sorted(whole, key=lambda row: row["Account"] != default)


def _most(limits: Iterable[str]) -> int | None:
    """Return the widest of several limits; None if one of them is none."""
    given = list(limits)
    numbers = [int(one) for one in given if one.isdecimal()]
    return max(numbers) if numbers and len(numbers) == len(given) else None


def _interfaces() -> list[str]:
    try:
        done = run(("srun", "--mpi=list"))
    except Unavailable:
        return []
    words = re.findall(r"^\s*(?:srun: +)?(\w+)$", f"{done.stdout}\n{done.stderr}", re.MULTILINE)
    known = [word for word in dict.fromkeys(words) if word != "none"]
    return [f"srun speaks to MPI by {', '.join(known)} (distributed.backend: mpi)"] if known else []


def _count(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _said(*argv: str) -> str:
    done = run(argv)
    if done.returncode != 0:
        why = slurm_text.message(done.stderr) or f"exit code {done.returncode}"
        raise Unavailable(f"{' '.join(argv[:3])}: {why}")
    return done.stdout
