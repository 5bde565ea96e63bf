"""The backend of a site."""

from __future__ import annotations

from hpcdet.errors import ConfigError
from hpcdet.schedulers.common.base import Scheduler
from hpcdet.site import Site


def open_scheduler(site: Site) -> Scheduler:
    """The scheduler that the site names; it is not asked anything yet.

    Raises:
        ConfigError: there is no backend for it.
    """
    if site.scheduler == "slurm":
        from hpcdet.schedulers.slurm import slurm

        return slurm.for_site(site)
    if site.scheduler == "local":
        from hpcdet.schedulers.local import local

        return local.for_site(site)
    raise ConfigError(
        f"hpcdet has no {site.scheduler} backend in this version",
        where=f"site {site.name}",
        hint="use a Slurm site, or --site local inside a job of yours",
    )
