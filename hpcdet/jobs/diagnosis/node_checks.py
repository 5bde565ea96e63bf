"""A site proven by a short job: what ``machine_checks`` finds on a node, and that the job came."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from hpcdet.errors import HpcdetError, StillPending
from hpcdet.jobs import one_shot_job
from hpcdet.jobs.checks import site_checks
from hpcdet.jobs.diagnosis import machine_checks
from hpcdet.jobs.diagnosis.finding import SiteFinding
from hpcdet.schedulers import opening
from hpcdet.site import Site
from hpcdet.store.config.placement import Resources
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.fs import files

_MODULE = "hpcdet.jobs.diagnosis.machine_checks"
CHECKS = ("python", "packages", "torch", "gpu", "hdf5", "mpi", "launcher", "visibility", "cache")
"""Those of one node; ``rank_steps.CHECKS`` are those of two."""


def nodes_of(site: Site, partition: str | None, wanted: int = 2) -> int:
    """Return the nodes of the job: two where a job of the partition can have them.

    Raises:
        Unavailable: the scheduler does not answer.
    """
    view = site.view(partition)
    if not opening.of(site).cluster:
        return 1
    names = str(view.directives.get("partition") or "").split(",")
    there = site_checks.partitions(site)
    widths = [one.widest for one in there if one.name in names or (names == [""] and one.default)]
    most = min(max(widths, default=wanted), view.bounds.max_nodes or wanted, wanted)
    return max(int(most), view.bounds.min_nodes or 1)


def findings(
    site: Site,
    partition: str | None,
    place: Path,
    timeout_s: float,
    walltime_s: int,
    nodes: int = 1,
    tell: Callable[[str], None] = lambda _: None,
) -> Iterator[SiteFinding]:
    """Look at a node by a job of the site's own template, scheduler and launcher.

    Args:
        partition: where; None: the site's default.
        place: a folder of ``one_shot_job.folder``, which the node has to see.
        timeout_s: for all of it, the queue included; the job is canceled then.
        walltime_s: of the job; more where the partition takes no job so short.
        nodes: of the job; on two of them, what is between them is looked at, too.
        tell: as of ``one_shot_job.run``.
    """
    try:
        yield from _by_job(site, partition, place, timeout_s, walltime_s, nodes, tell)
    except StillPending as error:
        hint = "--timeout waits longer, --partition NAME asks elsewhere, --nodes 1 asks for less"
        what = f"{error.where}: {error.what}; it is canceled"
        yield SiteFinding("error", what, hint, "job", "node")
    except HpcdetError as error:
        where = f"{error.where}: " if error.where else ""
        yield SiteFinding("error", where + error.what, error.hint, "job", "node")


def _by_job(
    site: Site,
    partition: str | None,
    place: Path,
    timeout_s: float,
    walltime_s: int,
    nodes: int,
    tell: Callable[[str], None],
) -> Iterator[SiteFinding]:
    nonce = secrets.token_hex(8)
    files.write_once(place / "seen", nonce.encode())
    bounds = site.view(partition).bounds
    nodes = max(nodes, bounds.min_nodes or 1)
    resources = Resources(
        slots_per_trial=nodes,
        nodes=nodes,
        walltime_s=max(walltime_s, bounds.min_walltime_s or 0),
        resource_pool=partition,
    )
    argv = [site.python or sys.executable, "-Pm", _MODULE, str(place), nonce]
    more = [str(resources.walltime_s), *([partition] if partition else [])]
    experiment = Resolved(resources=resources)
    with machine_checks.leave(nonce):
        answer, said = one_shot_job.run(
            place, site, experiment, [*argv, *more], timeout_s, tell=tell
        )
    yield SiteFinding("ok", f"a job ran on {answer.host}", check="job", where="node")
    lines = said.strip().splitlines() or [""]
    try:
        found = [SiteFinding(**item) for item in json.loads(lines[-1])]
    except (ValueError, TypeError):
        what = f"exit {answer.code}: {lines[-1]}"
        yield SiteFinding("error", what, "\n".join(lines[-10:]), "job", "node")
        return
    for finding in found:
        yield finding if finding.where == "nodes" else replace(finding, where="node")
