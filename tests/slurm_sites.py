"""Site files for the private Slurm: real ones, only more impatient."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from hpcdet.store.fs import files
from tests.cluster.slurm import SlurmCluster

if TYPE_CHECKING:
    from tests.slurm_runs import Lab


def write_site(folder: Path, cluster: SlurmCluster, **changes: Any) -> Path:
    """Write a site file for the cluster and return its path, good for ``--site``.

    Jobs see the counting wrappers first on their PATH. A task may requeue itself; pass
    ``capabilities={"requeue": "none"}`` for a site where it may not.

    Args:
        changes: keys of the site to replace; mappings are merged one level deep.
    """
    site: dict[str, Any] = {
        "schema": 1,
        "name": "private",
        "extends": "generic-slurm",
        "scheduler": "slurm",
        "capabilities": {"requeue": "user"},
        "limits": {
            "max_array": cluster.options.max_array,
            "max_submit": cluster.options.max_submit,
            "poll_min_s": 1,
            "kill_wait_s": cluster.options.kill_wait_s,
            "signal_lead_s": 20,
        },
        "default_partition": "batch",
        "env": {
            "PATH": cluster.environment()["PATH"],
            "HPCDET_CACHE": str(folder / "cache"),
            "OMP_NUM_THREADS": "1",
        },
        "launcher": {"kind": "srun"},
        "python": sys.executable,
        "lease_ttl_s": 10,
    }
    for key, value in changes.items():
        known = site.get(key)
        merged = isinstance(known, dict) and isinstance(value, dict)
        site[key] = {**known, **value} if merged and isinstance(known, dict) else value
    path = folder / f"{site['name']}.yaml"
    files.replace(path, yaml.safe_dump(site, sort_keys=False).encode())  # others may read it
    return path


def newcomer(lab: Lab, **changes: Any) -> Path:
    """The shipped ``generic-slurm``, only more impatient: what it leaves open stays open.

    Args:
        changes: keys of the site to replace.
    """
    site = {
        "schema": 1,
        "name": "newcomer",
        "extends": "generic-slurm",
        "env": {
            "PATH": lab.cluster.environment()["PATH"],
            "HPCDET_CACHE": str(lab.folder / "cache"),
            "OMP_NUM_THREADS": "1",
        },
        "limits": {"poll_min_s": 1},
        "lease_ttl_s": 10,
        **changes,
    }
    path = lab.folder / "newcomer.yaml"
    files.replace(path, yaml.safe_dump(site, sort_keys=False).encode())
    return path
