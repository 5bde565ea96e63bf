"""A site proven by a short job: what ``machine_checks`` finds on a node, and that the job came."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from hpcdet.errors import HpcdetError
from hpcdet.jobs import one_shot_job
from hpcdet.jobs.checks.site_checks import SiteFinding
from hpcdet.site import Site
from hpcdet.store.config.placement import Resources
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.fs import files

_MODULE = "hpcdet.jobs.checks.machine_checks"


def findings(
    site: Site, partition: str | None, place: Path, timeout_s: float, walltime_s: int
) -> Iterator[SiteFinding]:
    """Look at a node by a job of the site's own template, scheduler and launcher.

    Args:
        partition: where; None: the site's default.
        place: a folder of ``one_shot_job.folder``, which the node has to see.
        timeout_s: for all of it, the queue included; the job is canceled then.
        walltime_s: of the job; more where the partition takes no job so short.
    """
    try:
        yield from _by_job(site, partition, place, timeout_s, walltime_s)
    except HpcdetError as error:
        where = f"{error.where}: " if error.where else ""
        yield SiteFinding("error", where + error.what, error.hint, "job", "node")


def _by_job(
    site: Site, partition: str | None, place: Path, timeout_s: float, walltime_s: int
) -> Iterator[SiteFinding]:
    nonce = secrets.token_hex(8)
    files.write_once(place / "seen", nonce.encode())
    bounds = site.view(partition).bounds
    nodes = bounds.min_nodes or 1
    resources = Resources(
        slots_per_trial=nodes,
        nodes=nodes,
        walltime_s=max(walltime_s, bounds.min_walltime_s or 0),
        resource_pool=partition,
    )
    argv = [site.python or sys.executable, "-Pm", _MODULE, str(place), nonce]
    more = [partition] if partition else []
    answer, said = one_shot_job.run(
        place, site, Resolved(resources=resources), [*argv, *more], timeout_s
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
        yield replace(finding, where="node")
