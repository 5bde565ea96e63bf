"""Environment variables that pass from the submitting shell into a job and its steps."""

from __future__ import annotations

import os
from collections.abc import Mapping

from hpcdet.schedulers import opening
from hpcdet.schedulers.common import variables
from hpcdet.site import Site

CARRIED = (
    "PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "MODULEPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "LANG",
    "LC_ALL", "LC_CTYPE", "TZ", "HPCDET_CACHE", "HPCDET_LOCAL_STATE", "HPCDET_SITE_DIR",
)  # fmt: skip
"""All that a job gets of the submitting shell, and all that is recorded of it."""


def carried(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of the submitting shell that a job may have."""
    environ = os.environ if environ is None else environ
    return {name: environ[name] for name in CARRIED if name in environ}


def for_step(environ: Mapping[str, str], site: Site) -> dict[str, str]:
    """The environment of a step: without rank, PMI and binding variables.

    Those of the allocation stay: some launchers make a new job where they find none.
    """
    return variables.for_step(environ, opening.of(site).names)


def fold_defaults(site: Site, environ: Mapping[str, str] | None = None) -> Site:
    """The site with the options, as directives, that the user gives to all jobs by variables.

    As with the scheduler's own commands they win over what a script (here: the site file) says.
    The origin of each is the variable.
    """
    environ = os.environ if environ is None else environ
    names = opening.of(site).names.defaults
    given = {names[name]: environ[name] for name in names if environ.get(name)}
    if not given:
        return site
    origins = {f"directives.{names[name]}": f"${name}" for name in names if environ.get(name)}
    partition = given.pop("partition", None)
    if partition is not None:
        origins["default_partition"] = origins.pop("directives.partition")
    return site.changed(
        {
            "directives": {**site.directives, **given},
            "default_partition": partition or site.default_partition,
        },
        origins,
    )
