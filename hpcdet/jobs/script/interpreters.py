"""Python interpreters of an experiment: of its jobs, and of its ranks, which may be in an image."""

from __future__ import annotations

import sys

from hpcdet.site import Site
from hpcdet.store.config.resolved_config import Resolved


def of_jobs(experiment: Resolved, site: Site) -> str:
    """The interpreter of workers and other jobs, which run on the host."""
    own = None if experiment.environment.image else experiment.environment.python
    return own or site.python or sys.executable


def of_ranks(experiment: Resolved, site: Site) -> str:
    """The interpreter of the ranks: in their image, where they have one."""
    if experiment.environment.image:
        return experiment.environment.python or "python3"
    return of_jobs(experiment, site)
