"""Environment variables that pass from the submitting shell into a job and its steps."""

from __future__ import annotations

import os
from collections.abc import Mapping

from hpcdet.schedulers.common.variables import for_step, scrubbed
from hpcdet.site import Site

__all__ = ["carried", "fold_defaults", "for_step", "scrubbed"]

CARRIED = (
    "PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "MODULEPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "LANG",
    "LC_ALL", "LC_CTYPE", "TZ", "HPCDET_CACHE", "HPCDET_LOCAL_STATE", "HPCDET_SITE_DIR",
)  # fmt: skip
"""All that a job gets of the submitting shell, and all that is recorded of it."""

DEFAULTS = {
    "SBATCH_ACCOUNT": "account",
    "SBATCH_QOS": "qos",
    "SBATCH_RESERVATION": "reservation",
    "SBATCH_CONSTRAINT": "constraint",
    "SBATCH_WCKEY": "wckey",
    "SBATCH_PARTITION": "partition",
}
"""A user's own defaults for ``sbatch``, and the options they stand for."""


def carried(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of the submitting shell that a job may have."""
    environ = os.environ if environ is None else environ
    return {name: environ[name] for name in CARRIED if name in environ}


def fold_defaults(site: Site, environ: Mapping[str, str] | None = None) -> Site:
    """The site with the user's ``SBATCH_ACCOUNT`` and the like as directives.

    As with ``sbatch`` itself they win over what a script (here: the site file) says. The
    origin of each is the variable.
    """
    environ = os.environ if environ is None else environ
    given = {name: environ[name] for name in DEFAULTS if environ.get(name)}
    if not given or site.scheduler != "slurm":
        return site
    partition = given.pop("SBATCH_PARTITION", None)
    directives = {**site.directives, **{DEFAULTS[name]: value for name, value in given.items()}}
    origins = {f"directives.{DEFAULTS[name]}": f"${name}" for name in given}
    if partition is not None:
        origins["default_partition"] = "$SBATCH_PARTITION"
    return site.changed(
        {"directives": directives, "default_partition": partition or site.default_partition},
        origins,
    )
