"""Backends by their names, as entry points of the group ``hpcdet.schedulers`` register them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdet import registered
from hpcdet.errors import ConfigError
from hpcdet.schedulers.common.backend import Backend
from hpcdet.schedulers.common.base import Scheduler

if TYPE_CHECKING:
    from hpcdet.site import Site
    from hpcdet.store.config.resolved_config import Resolved

GROUP = "hpcdet.schedulers"


def names() -> list[str]:
    """Names of all backends there are, hpcdet's own first."""
    return [*registered.names(GROUP)]


def backend(name: str) -> Backend:
    """The backend of that name. Raises ConfigError: there is none, or it cannot be imported."""
    found: Backend = registered.find(GROUP, name, "backend for the scheduler", "scheduler")
    return found


def of(site: Site) -> Backend:
    """The backend of a site. Raises ConfigError as ``backend``."""
    return backend(site.scheduler)


def open_scheduler(site: Site) -> Scheduler:
    """The scheduler that the site names; it is not asked anything yet.

    Raises ConfigError as ``backend``.
    """
    return of(site).control(site)


def account(site: Site, resolved: Resolved) -> str:
    """The project or account that an experiment's jobs are charged to; "" if none is named.

    Raises ConfigError as ``backend``.
    """
    directives = site.view(resolved.resources.resource_pool).directives
    return of(site).script.project(directives, resolved.user_options(site.scheduler))


def every() -> list[Backend]:
    """All backends there are; one that cannot be imported is left out."""
    found = []
    for name in names():
        try:
            found.append(backend(name))
        except ConfigError:
            continue
    return found
