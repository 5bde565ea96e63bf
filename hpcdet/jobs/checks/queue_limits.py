"""Bounds of a partition or queue on one job, as the site file gives them.

A job beyond them is refused before anything is queued: the scheduler would refuse it later, or
keep it waiting for ever.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from hpcdet.errors import ConfigError
from hpcdet.jobs.script import lanes, succession
from hpcdet.schedulers import opening
from hpcdet.site import PartitionView, Site
from hpcdet.store.config.placement import Resources
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.folder.names import slug
from hpcdet.units import duration

_AROUND_NAME = len("-7f3a") + len("-9999") + len("-sentinel")
"""Characters of a job's name beside that of its experiment, at most."""
_Place = TypeVar("_Place")


def refuse_beyond(need: Resources, view: PartitionView) -> None:
    """Refuse a job (``Resolved.allocation``) that is outside the bounds of its partition or queue.

    A job that may begin with fewer nodes than its most has to fit with each number of them.

    Raises:
        ConfigError: they are, with the bound and what would fit.
    """
    name, bounds = view.name or "default", view.bounds
    least, most = need.least_nodes, need.nodes
    if bounds.max_nodes is not None and least > bounds.max_nodes:
        raise ConfigError(
            f"{_nodes(least)}; {name} gives a job at most {bounds.max_nodes}",
            where="resources.nodes",
            hint="fewer nodes, or another resources.resource_pool",
        )
    if bounds.min_nodes is not None and least < bounds.min_nodes:
        raise ConfigError(
            f"{_nodes(least)}; {name} takes jobs of {bounds.min_nodes} nodes and more",
            where="resources.nodes",
            hint=f"more nodes, another resources.resource_pool, or min_nodes of {name} in the site "
            "file: one job then runs several trials side by side",
        )
    if need.walltime_s is None:
        return
    shortest = bounds.min_walltime_s
    if shortest is not None and need.walltime_s < shortest:
        raise ConfigError(
            f"{duration(need.walltime_s)} is less than the least walltime of {name}",
            where="resources.walltime_s",
            hint=f"at least {duration(shortest)}",
        )
    for nodes in (least, most):
        longest = view.longest_s(nodes)
        if longest is not None and need.walltime_s > longest:
            raise ConfigError(
                f"{duration(need.walltime_s)} is over the limit of {name} for {_nodes(nodes)}",
                where="resources.walltime_s",
                hint=f"at most {duration(longest)}; trials go on in the next allocation by "
                "themselves",
            )


def refuse_beyond_all(need: Resources, site: Site) -> None:
    """Refuse a job that fits into none of its partitions. Raises as ``refuse_beyond``."""
    names = (need.resource_pool or "").split(",")
    one_of(names, lambda name: refuse_beyond(need, site.view(name or None)))


def one_of(places: Iterable[_Place], refuse: Callable[[_Place], None]) -> None:
    """Refuse what is refused at each place. Raises the first one's ConfigError."""
    beyond: list[ConfigError] = []
    for place in places:
        try:
            return refuse(place)
        except ConfigError as error:
            beyond.append(error)
    raise beyond[0]


def refuse_pool(pool: str | None, site: Site) -> None:
    """Refuse several partitions where a job can only name one, and unknown ones.

    A scheduler refuses what it does not know; the local backend has only the site's word.

    Raises:
        ConfigError: the scheduler takes no lists, or there is no such partition.
    """
    where = "resources.resource_pool"
    if pool is not None and "," in pool and not opening.of(site).script.lists:
        raise ConfigError(
            f"{pool} names several, and a job of the scheduler {site.scheduler} goes to one",
            where=where,
            hint=f"name one: {', '.join(pool.split(','))}",
        )
    if pool is None or site.scheduler != "local" or pool in site.partitions:
        return
    near = difflib.get_close_matches(pool, site.partitions, n=1)
    names = ", ".join(sorted(site.partitions))
    here = f"partitions here: {names}" if names else "leave it out: the site has no partitions"
    hint = f"did you mean {near[0]}?" if near else here
    raise ConfigError(f"there is no partition {pool}", where=where, hint=hint)


def place(experiment: Resolved, site: Site) -> str:
    """Return the partition or queue of an experiment's jobs, or several; "" if none is named."""
    pool, user = experiment.resources.resource_pool, experiment.user_options(site.scheduler)
    return str(opening.of(site).script.place(pool, user) or site.view(pool).name or "")


def partition_limit(experiment: Resolved, site: Site) -> tuple[str, int] | None:
    """Return the partition or queue of an experiment that bounds what runs in it, and the bound.

    Of several that a job may run in none does: the scheduler takes the one that has room.
    """
    name = place(experiment, site)
    part = site.partitions.get(name)
    return None if part is None or part.max_running is None else (name, part.max_running)


def refuse_preemptible(experiment: Resolved, site: Site) -> list[str]:
    """Refuse a preemptible partition or queue that the user has not agreed to.

    Returns:
        A warning where the agreement has no effect.

    Raises:
        ConfigError: it is one by the site file, with the ways to go on.
    """
    pool, user = experiment.resources.resource_pool, experiment.user_options(site.scheduler)
    chosen = opening.of(site).script.place(pool, user)
    names = place(experiment, site).split(",")
    all_of = [name for name, part in site.partitions.items() if part.preemptible]
    found, agreed = [name for name in names if name in all_of], experiment.resources.preemptible
    if found and not agreed:
        is_default = "" if chosen else ", the default one,"
        others = [name for name in site.partitions if name not in all_of]
        instead = f", or name another one: {', '.join(others)}" if others else ""
        raise ConfigError(
            f"jobs in {found[0]}{is_default} may be ended at any time to run others",
            where="resources.resource_pool",
            hint=f"if that is meant, add resources: {{preemptible: true}}{instead}",
        )
    if agreed and not found:
        those = f"those are: {', '.join(all_of)}" if all_of else "the site file names none"
        where = f"{names[0]} is none" if names[0] else "no partition is named"
        return [f"resources.preemptible has no effect: {where}; {those}"]
    return []


def refuse_long_name(experiment: Resolved, site: Site) -> None:
    """Refuse an experiment whose jobs would have longer names than the scheduler takes.

    Raises:
        ConfigError: they would, with the length that fits.
    """
    most, name = site.limits.name_max, slug(experiment.name)
    if most is not None and len(name) + _AROUND_NAME > most:
        raise ConfigError(
            f"names of jobs have at most {most} characters at site {site.name}, and {name} has "
            f"{len(name)}, to which hpcdet adds up to {_AROUND_NAME}",
            where="name",
            hint=f"a name of at most {max(1, most - _AROUND_NAME)} characters",
        )


def warnings(experiment: Resolved, site: Site, view: PartitionView) -> list[str]:
    """Return what is allowed in a partition or queue and probably not meant, a sentence each."""
    name, found = view.name or "default", []
    job, groups = experiment.allocation, experiment.worker.node_groups
    if unused := max(0, groups - experiment.lanes) * experiment.resources.nodes:
        found.append(
            f"{name} takes jobs of {job.nodes} nodes and more, of which {unused} would be idle: "
            f"at most {experiment.lanes} trials run at once"
        )
    if view.bounds.whole_nodes and (idle := _idle(job, view)):
        found.append(
            f"{name} gives and charges whole nodes, of which {idle} would be idle: worker.lanes: "
            "auto puts trials side by side"
        )
    return [*found, *waiting(experiment, site)]


def waiting(experiment: Resolved, site: Site) -> list[str]:
    """Return a sentence for each limit of jobs that run at once which an experiment is beyond."""
    jobs = lanes.tasks(experiment.trials_at_once, experiment.lanes)
    return [
        f"{jobs} jobs are to run at once, and {site.name} {what}: the others wait"
        for most, what in _running(experiment, site)
        if jobs > most
    ]


def most_jobs(experiment: Resolved, site: Site) -> int | None:
    """Return how many jobs of an experiment may run at once, if nothing else does; None: any."""
    return min((most for most, _ in _running(experiment, site)), default=None)


def _running(experiment: Resolved, site: Site) -> Iterator[tuple[int, str]]:
    """Yield each limit on an experiment's jobs that run at once, and what sets it."""
    limits = site.limits
    if (bound := partition_limit(experiment, site)) is not None:
        yield bound[1], f"runs {bound[1]} of one user in {bound[0]}"
    if limits.max_running is not None:
        yield limits.max_running, f"runs {limits.max_running} of one user"
    if limits.max_running_project is not None:
        what = f"runs {limits.max_running_project} of one project, all its users together"
        yield limits.max_running_project, what
    if limits.max_submit is not None:
        behind = 1 if limits.max_submit > 1 and succession.after_end(site) else 0
        beside = ", one of them the small job behind the others" if behind else ""
        what = f"queues {limits.max_submit} of one user{beside}"
        yield limits.max_submit - behind, what


def _idle(job: Resources, view: PartitionView) -> str:
    """Return the share of each node that a job leaves idle, for people; "" if it is used."""
    slots, cpus = job.slots_per_node, job.slots_per_node * job.cpus_per_slot
    if view.slots_per_node is not None and slots <= view.slots_per_node // 2:
        return f"{view.slots_per_node - slots} of {view.slots_per_node} slots"
    if view.slots_per_node is None and view.cpus_per_node and cpus <= view.cpus_per_node // 2:
        return f"{view.cpus_per_node - cpus} of {view.cpus_per_node} cores"
    return ""


def _nodes(count: int) -> str:
    return "one node" if count == 1 else f"{count} nodes"
