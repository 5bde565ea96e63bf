"""A policy's requirements of nodes as requests to the scheduler.

Features of nodes are advertised by the scheduler, not enforced: a job that does not ask for them
lands anywhere. So they are added to every request, and whatever could undo them is refused; that
the node keeps its word is verified there (``policy.statements``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hpcdet.policy import named_policy
from hpcdet.policy.codes import PolicyRefused
from hpcdet.schedulers.common.base import NodeGroup
from hpcdet.site.governance import NodeCapability, PbsNodes, SiteGovernance, SlurmNodes
from hpcdet.site.models import Site, Value
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.folder.layout import ExperimentPaths

if TYPE_CHECKING:
    from hpcdet.policy.compiled import CompiledPolicy

_POLICY = "policy: requires.capabilities"
_SET_BY_POLICY = ("partition", "account", "qos")
_ELSEWHERE = ("clusters", "cluster-constraint")
"""Options that send a job to another cluster, whose features mean something else."""
_ADDABLE = re.compile(r"[A-Za-z0-9_.:/=-]+(?:[&|][A-Za-z0-9_.:/=-]+)*")
"""Constraints of users that mean the same beside another: no counts, brackets or parentheses.
``a*1&b`` gives nodes without ``b`` (Slurm 22.05), and parentheses cannot be nested."""


@dataclass(frozen=True)
class NodeRequest:
    """Requests to Slurm of jobs under a policy; all of ``features`` are wanted."""

    capabilities: tuple[str, ...]
    features: tuple[str, ...] = ()
    partition: str | None = None
    account: str | None = None
    qos: str | None = None

    @property
    def settings(self) -> dict[str, str]:
        """Options of ``sbatch`` that have exactly one right value."""
        values = ((name, getattr(self, name)) for name in _SET_BY_POLICY)
        return {name: value for name, value in values if value is not None}


def of_policy(policy: CompiledPolicy, site: Site) -> NodeRequest | None:
    """Return what jobs ask for at a site; None if the policy requires nothing of nodes.

    Raises:
        PolicyRefused: P17: the site has no such capability, no signed statements where the policy
            wants them, or capabilities that no job can have together.
    """
    requires = policy.on_nodes
    if not requires.capabilities:
        return None
    known = (site.governance or SiteGovernance()).capabilities
    names = tuple(sorted(set(requires.capabilities)))
    if missing := [name for name in names if name not in known]:
        there = f"it has {', '.join(sorted(known))}" if known else "it has none"
        raise PolicyRefused(
            "P17",
            f"site {site.name} has no capability {', '.join(missing)}; {there}",
            where=_POLICY,
            hint="submit at a site that has it (--site), or ask its administrators for "
            "governance.capabilities in the site file: docs/reference/site-governance.md",
        )
    if requires.statement == "signed":
        _refuse_unsigned(policy, site)
    if site.scheduler != "slurm":
        return NodeRequest(names)
    return _slurm(names, known, site)


def of_experiment(experiment: Resolved, paths: ExperimentPaths, site: Site) -> NodeRequest | None:
    """Return what jobs of an experiment ask for; None without a policy that requires nodes.

    Raises:
        PolicyRefused: as ``of_policy``.
        GovernanceBroken: its policy is gone, damaged, or another one; or its config has lost it.
    """
    policy = named_policy.require(paths, experiment)
    return None if policy is None else of_policy(policy, site)


def _refuse_unsigned(policy: CompiledPolicy, site: Site) -> None:
    statement = site.governance.statement if site.governance else None
    where = "policy: requires.statement: signed"
    if statement is None or statement.key is None:
        raise PolicyRefused(
            "P17",
            f"nodes of site {site.name} make no signed statements",
            where=where,
            hint="an administrator sets governance.statement.key in the site file and runs "
            "governance/site/node_statement.py on each node; or require `declared`",
        )
    trusted = [one.key for one in policy.trust if one.role == "site"]
    if trusted and statement.key not in trusted:
        raise PolicyRefused(
            "P17",
            f"nodes of site {site.name} sign with {statement.key[:12]}…, which the policy does "
            "not trust",
            where=where,
            hint="compare governance.statement.key of the site file with the keys of role site "
            "under trust in the policy",
        )


def _slurm(names: tuple[str, ...], known: Mapping[str, NodeCapability], site: Site) -> NodeRequest:
    asks: dict[str, SlurmNodes] = {}
    for name in names:
        asked = known[name].slurm
        if asked is None or asked == SlurmNodes():
            raise PolicyRefused(
                "P17",
                f"site {site.name} does not say how Slurm gives nodes with {name}",
                where=f"site {site.name}: governance.capabilities.{name}",
                hint="slurm: {constraint: FEATURE}, or a partition, account or qos",
            )
        asks[name] = asked
    features = [one for asked in asks.values() for one in (asked.constraint or "").split("&")]
    return NodeRequest(
        names,
        tuple(dict.fromkeys(filter(None, features))),
        **{option: _agreed(option, asks, site) for option in _SET_BY_POLICY},
    )


def _agreed(option: str, asks: Mapping[str, SlurmNodes], site: Site) -> str | None:
    """Return the one value that all capabilities want of an option; None if none wants any."""
    wanted = {value: name for name, one in asks.items() if (value := getattr(one, option))}
    if len(wanted) > 1:
        each = ", ".join(f"{name}: {value}" for value, name in wanted.items())
        raise PolicyRefused(
            "P17",
            f"a job has one {option}, and capabilities want several ({each})",
            where=f"site {site.name}: governance.capabilities",
            hint="require fewer capabilities, or ask the site for a common one",
        )
    return next(iter(wanted), None)


def added(
    values: Mapping[str, Value], asked: Mapping[str, Value], request: NodeRequest
) -> dict[str, Value]:
    """Return options of ``sbatch`` with what a policy requires.

    Args:
        values: all options so far: hpcdet's, the site's, the user's.
        asked: of these the user's own, whose partition, account and qos are not replaced silently.

    Raises:
        PolicyRefused: P17: the user asks for something that would undo it.
    """
    for option, value in request.settings.items():
        if asked.get(option) not in (None, value):
            raise _undone(f"--{option}={asked[option]}", f"--{option}={value}", request)
    for option in _ELSEWHERE:
        if values.get(option) is not None:
            raise _undone(f"--{option}={values[option]}", "this cluster", request)
    found = {**values, **request.settings}
    if request.features:
        found["constraint"] = _constraint(values.get("constraint"), request)
    return found


def _constraint(given: Value, request: NodeRequest) -> str:
    needed = "&".join(request.features)
    if given is None or given is False:
        return needed
    text = str(given)
    if given is True or not _ADDABLE.fullmatch(text):
        raise PolicyRefused(
            "P17",
            f"--constraint={text} cannot be joined with {needed}",
            where="slurm.sbatch_args",
            hint="write names of features joined by & or |; counts and brackets would let Slurm "
            "choose nodes without them",
        )
    return f"({text})&{needed}"


def _undone(given: str, wanted: str, request: NodeRequest) -> PolicyRefused:
    names = ", ".join(request.capabilities)
    return PolicyRefused(
        "P17",
        f"{given} would take jobs away from where {names} is enforced: {wanted}",
        where="slurm.sbatch_args, resources.resource_pool",
        hint="leave it out: the policy sets it",
    )


# -- whether there are such nodes ----------------------------------------------------------


def refuse_unsatisfiable(
    request: NodeRequest, partition: str | None, nodes: int, groups: Sequence[NodeGroup]
) -> None:
    """Refuse a job that no nodes of its partition could ever take.

    Args:
        partition: where it goes, several joined by commas; None: the default one.
        nodes: that one job needs.
        groups: all nodes of the cluster, by partition and features.

    Raises:
        PolicyRefused: P17: too few nodes have what is required; the hint lists the nearest.
    """
    named = set(partition.split(",")) if partition else None
    there = [one for one in groups if (one.partition in named if named else one.default)]
    place = f"partition {partition}" if partition else "the default partition"
    wanted = set(request.features)
    fit = _most(there, wanted)
    if fit >= nodes:
        return
    raise PolicyRefused(
        "P17",
        f"{nodes} nodes with {_listed(wanted) or 'no feature'} are needed; {place} has {fit}",
        where=f"policy: requires.capabilities: {', '.join(request.capabilities)}",
        hint=_nearest(groups, wanted),
    )


def _most(groups: Iterable[NodeGroup], wanted: set[str]) -> int:
    """Return how many nodes with these features the best partition has: a job runs in one."""
    count: dict[str, int] = {}
    for one in groups:
        if wanted <= one.features:
            count[one.partition] = count.get(one.partition, 0) + one.nodes
    return max(count.values(), default=0)


def _nearest(groups: Sequence[NodeGroup], wanted: set[str], most: int = 3) -> str:
    ranked = sorted(groups, key=lambda one: (-len(wanted & one.features), one.partition))
    lines = []
    for one in ranked[:most]:
        lacks = wanted - one.features
        what = f"without {_listed(lacks)}" if lacks else "with all of it"
        lines.append(f"{one.partition}: {one.nodes} nodes {what}")
    return f"nearest: {'; '.join(lines)}" if lines else "the cluster shows no nodes"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


# -- PBS -----------------------------------------------------------------------------------


def pbs_options(
    names: Sequence[str], known: Mapping[str, NodeCapability], chunk: Mapping[str, int], count: int
) -> list[str]:
    """Return the words of ``qsub`` for nodes with these capabilities.

    Args:
        chunk: resources of one chunk: ``{"ncpus": 8, "ngpus": 4}``.
        count: how many chunks.

    Raises:
        PolicyRefused: P17: two capabilities want different queues, accounts or values.
    """
    asked = [one for name in sorted(names) if (one := known[name].pbs) is not None]
    select: dict[str, str] = {name: str(value) for name, value in chunk.items()}
    for one in asked:
        for name, value in one.select.items():
            text = str(value)
            if select.setdefault(name, text) != text:
                raise PolicyRefused(
                    "P17",
                    f"{name} would have to be both {select[name]} and {text}",
                    where=_POLICY,
                    hint="require fewer capabilities, or ask the site for a common one",
                )
    parts = ":".join(f"{name}={value}" for name, value in select.items())
    words = ["-l", f"select={count}:{parts}"]
    return [*words, *_pbs_setting("queue", "-q", asked), *_pbs_setting("account", "-A", asked)]


def _pbs_setting(name: Literal["queue", "account"], flag: str, asked: list[PbsNodes]) -> list[str]:
    found = {value for one in asked if (value := getattr(one, name)) is not None}
    if len(found) > 1:
        raise PolicyRefused(
            "P17",
            f"a job has one {name}, and capabilities want {_listed(found)}",
            where=_POLICY,
            hint="require fewer capabilities, or ask the site for a common one",
        )
    return [flag, found.pop()] if found else []
