"""Facts that a site file leaves open, asked of the cluster once and kept for a day.

``scontrol show config``, ``scontrol show partition`` and ``sacctmgr show assoc`` are run on the
login node; what they say lies in ``facts-KEY.json`` of the user's cache folder, one file for each
cluster as this host sees it. The answers go into the resolved site, so that nodes need not ask.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from hpcdet.errors import Unavailable
from hpcdet.schedulers.common.polling import cache_folder
from hpcdet.schedulers.common.survey import ClusterSurvey
from hpcdet.schedulers.slurm.answers import slurm_text
from hpcdet.schedulers.slurm.answers.slurm_text import parse_config
from hpcdet.site import Site
from hpcdet.store.fs import files

GOOD_FOR_S = 86400.0
commands = ("sbatch", "squeue", "srun", "sinfo", "scontrol")
generic = "generic-slurm"
launcher = "srun"
_NO_CLUSTER = "Could not establish a configuration source"
_CONFIG = ("ClusterName", "JobRequeue", "MaxArraySize", "KillWait", "AccountingStorageType")
_ASSOCIATION = ("Account", "Partition", "MaxSubmit")


@dataclass(frozen=True)
class ClusterFacts:
    """Facts of a cluster.

    Attributes:
        at: when, epoch seconds.
        config: the keys of ``scontrol show config`` that are used here.
        partitions: name to ``AllocNodes``, the hosts that may submit to it; the default one also
            under "".
        associations: of this user: ``Account``, ``Partition``, ``MaxSubmit``; empty without
            accounting.
    """

    at: float
    config: dict[str, str] = field(default_factory=dict)
    partitions: dict[str, str] = field(default_factory=dict)
    associations: list[dict[str, str]] = field(default_factory=list)


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
    """The site with what its file leaves open, and why some of that is assumed; "" if nothing is.

    Where ``fresh`` is asked for and the cluster does not answer, what it said before stands, and
    the second value says so.

    Args:
        pool: the partition of the experiment; None: the default one.
        ask: False: neither the cluster nor what it has said before; careful values are assumed.
        fresh: ask again, whatever is known.
    """
    if not site.open:
        return site, ""
    known, why = _facts(fresh) if ask else (None, "it was not asked")
    answers = dict(_answers(known, site, pool)) if known is not None else {}
    values: dict[str, Any] = {}
    for part in ("capabilities", "limits"):
        told = {
            key.partition(".")[2]: value
            for key, (value, _) in answers.items()
            if key.startswith(part)
        }
        values[part] = getattr(site, part).model_copy(update=told)
    assumed = site.open - answers.keys()
    day = _day(known) if known is not None else ""
    origins = {key: f"asked on {day}: {source}" for key, (_, source) in answers.items()}
    origins |= dict.fromkeys(assumed, f"assumed: {why or 'the cluster does not say'}")
    found = site.settled(values, origins)
    if known is None:
        return found, f"{why}: careful values are assumed for {', '.join(sorted(assumed))}"
    # whoever wanted another answer hears that it is the former one
    return found, f"{why}: what it said on {day} stands" if why and fresh else ""


def _answers(
    known: ClusterFacts, site: Site, pool: str | None
) -> Iterator[tuple[str, tuple[Any, str]]]:
    """Key to value and source of each open key that the cluster has an answer for."""
    for key, (name, read) in _OF_CONFIG.items():
        if key in site.open and (said := known.config.get(name)) is not None:
            value = read(said)
            if value is not None:
                yield key, (value, f"{name}={said}")
    view = site.view(pool)
    partition = view.directives.get("partition") or ""
    key = "capabilities.submit_from_compute"
    nodes = known.partitions.get(str(partition))
    if key in site.open and nodes is not None:
        where = f"partition {partition}" if partition else "the default partition"
        yield key, (nodes == "ALL", f"AllocNodes={nodes} of {where}")
    key = "limits.max_submit"
    if key in site.open and known.associations:
        most = _most(known, view.directives.get("account"), str(partition))
        yield key, (most, f"MaxSubmit={most or 'none'} of the association")


def _most(known: ClusterFacts, account: Any, partition: str) -> int | None:
    """Jobs that this user may have; the widest of the associations that may be meant.

    Too wide is refused, and fewer are submitted then; too narrow would never be noticed.
    """
    meant = [
        one
        for one in known.associations
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


def _facts(fresh: bool) -> tuple[ClusterFacts | None, str]:
    """Return the facts of this host's cluster; ask now if they are old."""
    scontrol = shutil.which("scontrol")
    if scontrol is None:
        return None, "there is no scontrol on PATH"
    try:
        path = _path(scontrol)
        before = _read(path)
        if before is not None and not fresh and 0 <= time.time() - before.at < GOOD_FOR_S:
            return before, ""
        try:
            now = ask()
        except Unavailable as error:
            return before, f"the cluster did not answer ({error.what})"
        files.replace(path, files.canonical(dataclasses.asdict(now)))
        return now, ""
    except (OSError, Unavailable) as error:
        return None, f"the user's cache folder cannot be used ({error})"


def _path(scontrol: str) -> Path:
    seen = (socket.getfqdn(), scontrol, os.environ.get("SLURM_CONF", ""))
    return cache_folder() / f"facts-{hashlib.sha256(repr(seen).encode()).hexdigest()[:16]}.json"


def _read(path: Path) -> ClusterFacts | None:
    try:
        found = ClusterFacts(**(files.read_json(path) or {}))
        _day(found)
    except (OSError, TypeError, ValueError, OverflowError):
        return None  # of another version, or damaged: ask anew
    return found


def _day(known: ClusterFacts) -> date:
    return datetime.fromtimestamp(known.at, UTC).date()


def ask() -> ClusterFacts:
    """Ask the cluster. Raises Unavailable where ``scontrol`` gives no answer."""
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
    return ClusterFacts(time.time(), known, partitions, found)


def _said(*argv: str) -> str:
    from hpcdet.schedulers.slurm.slurm import run  # late: most verbs find an answer in the file

    done = run(argv)
    if done.returncode != 0:
        why = slurm_text.message(done.stderr) or f"exit code {done.returncode}"
        raise Unavailable(f"{' '.join(argv[:3])}: {why}")
    return done.stdout
