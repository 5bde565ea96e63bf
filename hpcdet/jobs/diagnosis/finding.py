"""Findings of ``doctor`` and ``site check``, and what each check means."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

Level = Literal["ok", "warning", "error", "skipped"]
Where = Literal["here", "node", "nodes"]

MEANINGS = {
    "python": "jobs run this interpreter",
    "packages": "hpcdet imports these packages",
    "site": "a site file says what is particular to this cluster",
    "template": "scripts of jobs are rendered from templates",
    "scheduler": "jobs are submitted, watched and canceled by the scheduler's commands",
    "history": "the scheduler's history says why a job ended that has left the queue",
    "limits": "what exceeds the scheduler's limits is submitted in parts, as room comes",
    "partition": "a job waits for the nodes of its partition or queue",
    "capability": "policies are enforced only on nodes with these features",
    "job": "workers are jobs like this one",
    "launcher": "the launcher starts a trial's ranks on its nodes",
    "torch": "ranks train with torch",
    "gpu": "ranks train on the accelerators that torch can use",
    "hdf5": "checkpoints are HDF5 files; HDF5 locks a file when it opens it",
    "mpi": "distributed.backend: mpi needs mpi4py on the cluster's own MPI",
    "collectives": "ranks on several nodes exchange gradients",
    "creation": "who creates a file first has the right to decide or to run a trial",
    "rename": "records and checkpoints replace older ones as a whole",
    "visibility": "processes on several nodes learn of each other by files in one folder",
    "cache": "all processes of a user share one answer of the scheduler, and one limit of jobs",
    "clock": "ages and deadlines compare the clocks of hosts and file servers",
    "room": "checkpoints and logs take room on the file system",
    "quota": "a user's files may take less than the file system has",
    "inodes": "a running trial keeps up to 60 files",
    "purge": "files on a purged file system disappear at a certain age",
}
"""What depends on each check, a clause for people."""


@dataclass(frozen=True)
class SiteFinding:
    """One result of looking at a site or a machine."""

    level: Level
    """How good it is; ``skipped`` for what was not looked at."""
    what: str
    """What was found, or why it was not looked at."""
    hint: str = ""
    """What to do; "" for nothing."""
    check: str = "site"
    """What was looked at, in a word."""
    where: Where = "here"
    """``here``; ``node`` for what a job found; ``nodes`` for what it found between two nodes."""
    meaning: str = ""
    """What depends on it."""


def skipped(check: str, why: str, hint: str = "", where: Where = "here") -> SiteFinding:
    """Return the finding of a check that was not made."""
    return SiteFinding("skipped", f"not looked at: {why}", hint, check, where)


def explained(found: Iterable[SiteFinding]) -> list[SiteFinding]:
    """Return findings with their meanings."""
    return [replace(one, meaning=MEANINGS.get(one.check, "")) for one in found]


def absent(
    found: Iterable[SiteFinding], where: Where, checks: Iterable[str], why: str
) -> Iterator[SiteFinding]:
    """Yield a skipped finding for each check that nothing was found of in a place."""
    there = {one.check for one in found if one.where == where}
    for check in checks:
        if check not in there:
            yield skipped(check, why, where=where)
