"""A policy's requirements of nodes as requests to the scheduler.

Features of nodes are advertised by the scheduler, not enforced: a job that does not ask for them
lands anywhere. So they are added to every request, and whatever could undo them is refused; that
the node keeps its word is verified there (``policy.statements``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from hpcdet.policy import named_policy
from hpcdet.policy.changes import policy_history
from hpcdet.policy.codes import PolicyRefused
from hpcdet.schedulers import opening
from hpcdet.schedulers.common.base import NodeGroup
from hpcdet.schedulers.common.request import NodeRequest
from hpcdet.site.governance import SiteGovernance
from hpcdet.site.models import Site
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.folder.layout import ExperimentPaths

if TYPE_CHECKING:
    from hpcdet.policy.compiled import CompiledPolicy

_POLICY = "policy: requires.capabilities"


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
    asked = {name: known[name].get(site.scheduler) or {} for name in names}
    return opening.of(site).script.node_request(names, asked, site.name)


def of_experiment(experiment: Resolved, paths: ExperimentPaths, site: Site) -> NodeRequest | None:
    """Return what jobs of an experiment ask for; None without a policy that requires nodes.

    Raises:
        PolicyRefused: as ``of_policy``.
        GovernanceBroken: its policy or a change of it is gone, damaged, or another one; or its
            config has lost it.
    """
    policy = on_nodes(experiment, paths)
    return None if policy is None else of_policy(policy, site)


def on_nodes(experiment: Resolved, paths: ExperimentPaths) -> CompiledPolicy | None:
    """Return the policy by which nodes are judged; None if the experiment has none.

    Raises:
        GovernanceBroken: as ``of_experiment``.
    """
    policy = named_policy.require(paths, experiment)
    if policy is None:
        return None
    return policy_history.on_nodes(policy, paths, experiment.governance)


def refuse_undoing(experiment: Resolved, site: Site, required: NodeRequest) -> None:
    """Refuse options of the user that undo what a policy requires.

    Raises:
        PolicyRefused: P17: they do.
        ConfigError: they are not understood.
    """
    user = experiment.user_options(site.scheduler)
    script = opening.of(site).script
    script.refuse_undoing(experiment.resources.resource_pool, user, required)


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
