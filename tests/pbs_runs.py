"""Real experiments on a PBS server: what of ``slurm_runs`` is another thing there."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from hpcdet.site import Site
from hpcdet.site_files.load_site import load
from hpcdet.store.fs import files
from tests.cluster.pbs import PbsServer
from tests.slurm_runs import Lab, Run, config

MODES: dict[str, dict[str, Any]] = {
    "single": {},
    "rerun": {"rerun": "server"},
    "arrays": {"rerun": "server", "arrays": True},
}
"""What a site says of its server, by the way in which jobs go on."""


def sized(ranks: int, nodes: int, **changes: Any) -> dict[str, Any]:
    """A trial of so many ranks on so many hosts."""
    size = {"slots_per_trial": ranks, "nodes": nodes, "slots_per_node": ranks // nodes}
    size["memory_per_slot"] = 2**29
    resources = {**size, **changes.pop("resources", {})}
    return config(resources=resources, **changes)


class PbsLab(Lab):
    """A folder in which one test makes its experiments on the server."""

    cluster: PbsServer  # type: ignore[assignment]

    def site(self, **changes: Any) -> Site:
        """The resolved site of the server; mappings are merged one level deep."""
        site: dict[str, Any] = {
            "schema": 1,
            "name": "private",
            "extends": "generic-pbs",
            "scheduler": "pbs",
            "limits": {"poll_min_s": 1, "kill_wait_s": 10, "signal_lead_s": 20},
            "env": {
                "PATH": self.cluster.environment()["PATH"],
                "HPCDET_CACHE": str(self.folder / "cache"),
                "OMP_NUM_THREADS": "1",
            },
            "launcher": {"kind": "local"},
            "python": sys.executable,
            "lease_ttl_s": 10,
        }
        for key, value in changes.items():
            known = site.get(key)
            merged = isinstance(known, dict) and isinstance(value, dict)
            site[key] = {**known, **value} if merged and isinstance(known, dict) else value
        path = Path(self.folder) / "private.yaml"
        files.replace(path, yaml.safe_dump(site, sort_keys=False).encode())
        return load(str(path))

    def run(
        self,
        values: Mapping[str, Any],
        mode: str = "single",
        *,
        launcher: str = "local",
        pace: float = 0.0,
        **site: Any,
    ) -> Run:
        """Submit an experiment to a site of that mode."""
        said = {"capabilities": MODES[mode], "launcher": {"kind": launcher}, **site}
        if launcher == "mpirun":
            # all hosts may share a kernel, and Open MPI takes shared memory for a way between them
            args = ["--mca", "btl", "self,tcp", "--allow-run-as-root"]
            said["launcher"] = {"kind": launcher, "args": args}
        return self.submit(values, pace=pace, site=said)
