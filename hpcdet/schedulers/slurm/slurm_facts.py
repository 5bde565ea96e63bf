"""``backend.FactsFace`` of Slurm: what a site file leaves open.

``scontrol show config``, ``scontrol show partition`` and ``sacctmgr show assoc`` are run on the
login node.
"""

from __future__ import annotations

import functools
import os
import pwd
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hpcdet.errors import Unavailable
from hpcdet.schedulers.calls.cluster_facts import (
    NOT_ASKED,
    Answer,
    SaidFacts,
    recall,
    settle,
)
from hpcdet.schedulers.common.survey import ClusterSurvey
from hpcdet.schedulers.slurm.answers import slurm_text
from hpcdet.schedulers.slurm.answers.slurm_text import parse_config
from hpcdet.schedulers.slurm.slurm_commands import run
from hpcdet.site import Site

commands = ("sbatch", "squeue", "srun", "sinfo", "scontrol")
generic = "generic-slurm"
launcher = "srun"
_NO_CLUSTER = "Could not establish a configuration source"
_CONFIG = ("ClusterName", "JobRequeue", "MaxArraySize", "KillWait", "AccountingStorageType")
_ASSOCIATION = ("Account", "Partition", "MaxSubmit")


@functools.cache
def _shown(scontrol: str) -> tuple[Mapping[str, str], str]:
    """Return the output of ``scontrol show config`` (10 s at most), or its error message."""
    try:
        done = subprocess.run(
            [scontrol, "show", "config"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {}, str(error)
    return (parse_config(done.stdout), "") if done.returncode == 0 else ({}, done.stderr)


def _of_cluster(key: str, path: str) -> str | None:
    """A value of the cluster's own configuration."""
    scontrol = shutil.which("scontrol", path=path)
    return _shown(scontrol)[0].get(key) if scontrol else None


keys: Mapping[str, Callable[[str, str], str | None]] = {"scontrol": _of_cluster}


def no_cluster(path: str) -> bool:
    """See ``backend.FactsFace``. A controller that is down for the moment is a cluster."""
    scontrol = shutil.which("scontrol", path=path)
    return scontrol is not None and _NO_CLUSTER in _shown(scontrol)[1]


def slots_here(site: Site) -> int | None:  # noqa: ARG001
    """See ``backend.FactsFace``."""
    return None


def survey() -> ClusterSurvey:
    """See ``survey.Surveys``."""
    from hpcdet.schedulers.slurm import cluster_survey  # late: one verb asks it

    return cluster_survey.survey()


def resolved(
    site: Site, pool: str | None = None, *, ask: bool = True, fresh: bool = False
) -> tuple[Site, str]:
    """See ``backend.FactsFace``."""
    if not site.open:
        return site, ""
    known = _facts(fresh) if ask else NOT_ASKED
    return settle(site, known, lambda said: _answers(said, site, pool), fresh=fresh)


def _answers(known: Mapping[str, Any], site: Site, pool: str | None) -> Iterator[Answer]:
    """Key to value and source of each key that the cluster has an answer for."""
    for key, (name, read) in _OF_CONFIG.items():
        if (said := known["config"].get(name)) is not None:
            value = read(said)
            if value is not None:
                yield key, (value, f"{name}={said}")
    view = site.view(pool)
    partition = view.directives.get("partition") or ""
    nodes = known["partitions"].get(str(partition))
    if nodes is not None:
        where = f"partition {partition}" if partition else "the default partition"
        source = f"AllocNodes={nodes} of {where}"
        yield "capabilities.submit_from_compute", (nodes == "ALL", source)
    if known["associations"]:
        most = _most(known, view.directives.get("account"), str(partition))
        yield "limits.max_submit", (most, f"MaxSubmit={most or 'none'} of the association")


def _most(known: Mapping[str, Any], account: Any, partition: str) -> int | None:
    """Jobs that this user may have; the widest of the associations that may be meant.

    Too wide is refused, and fewer are submitted then; too narrow would never be noticed.
    """
    meant = [
        one
        for one in known["associations"]
        if (account is None or one["Account"] == account)
        and (not one["Partition"] or not partition or one["Partition"] == partition)
    ]
    limits = [int(one["MaxSubmit"]) if one["MaxSubmit"].isdecimal() else None for one in meant]
    numbers = [limit for limit in limits if limit]
    return max(numbers) if numbers and len(numbers) == len(limits) else None


def _count(said: str) -> int | None:
    return int(said) if said.isdecimal() else None


def _seconds(said: str) -> float | None:
    word = said.partition(" ")[0]  # "30 sec"
    return float(word) if word.isdecimal() else None


asked = (
    "capabilities.accounting",
    "capabilities.requeue",
    "capabilities.submit_from_compute",
    "limits.max_array",
    "limits.max_submit",
    "limits.kill_wait_s",
)

_OF_CONFIG: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    # where it is 0 a user's --requeue would be taken, but the operators do not want it
    "capabilities.requeue": ("JobRequeue", lambda said: "user" if said == "1" else "none"),
    "capabilities.accounting": ("AccountingStorageType", lambda said: said.endswith("slurmdbd")),
    "limits.max_array": ("MaxArraySize", _count),
    "limits.kill_wait_s": ("KillWait", _seconds),
}


def _facts(fresh: bool) -> SaidFacts:
    """Return the facts of this host's cluster; ask now if they are old."""
    scontrol = shutil.which("scontrol")
    if scontrol is None:
        return SaidFacts(why="there is no scontrol on PATH")
    seen = (scontrol, os.environ.get("SLURM_CONF", ""))
    return recall("", seen, _ask, fresh=fresh)


def _ask() -> dict[str, Any]:
    """Ask the cluster. Raises Unavailable where ``scontrol`` gives no answer.

    Returns:
        ``config``: the keys of ``scontrol show config`` that are used here. ``partitions``: name
        to ``AllocNodes``, the hosts that may submit to it; the default one also under "".
        ``associations`` of this user: ``Account``, ``Partition``, ``MaxSubmit``; empty without
        accounting.
    """
    config = parse_config(_said("scontrol", "show", "config"))
    partitions: dict[str, str] = {}
    for row in _said("scontrol", "--oneliner", "show", "partition").splitlines():
        words = dict(word.partition("=")[::2] for word in row.split())
        if name := words.get("PartitionName"):
            partitions[name] = words.get("AllocNodes", "ALL")
            if words.get("Default") == "YES":
                partitions[""] = partitions[name]
    known = {name: config[name] for name in _CONFIG if name in config}
    found: list[dict[str, str]] = []
    if known.get("AccountingStorageType", "").endswith("slurmdbd"):
        user = pwd.getpwuid(os.getuid()).pw_name
        mine = [f"user={user}", f"cluster={known.get('ClusterName', '')}"]
        form = f"format={','.join(_ASSOCIATION)}"
        try:
            said = _said("sacctmgr", "--noheader", "--parsable2", "show", "assoc", *mine, form)
        except Unavailable:
            said = ""  # sites hide it, or the database is away: refusals tell then
        rows = (row.split("|") for row in said.splitlines())
        found = [
            dict(zip(_ASSOCIATION, row, strict=True))
            for row in rows
            if len(row) == len(_ASSOCIATION)
        ]
    return {"config": known, "partitions": partitions, "associations": found}


def _said(*argv: str) -> str:
    done = run(argv)
    if done.returncode != 0:
        why = slurm_text.message(done.stderr) or f"exit code {done.returncode}"
        raise Unavailable(f"{' '.join(argv[:3])}: {why}")
    return done.stdout
