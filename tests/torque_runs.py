"""Real experiments through Slurm's wrappers with the names of Torque's commands."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpcdet.site import Site
from tests.cluster.slurm import SlurmCluster
from tests.pbs_runs import PbsLab

_PLUGIN = "slurm*/spank_pbs.so"
"""What gives jobs of Slurm variables of PBS, as ``PBS_JOBID``."""


def why_not() -> str:
    """Why there are no wrappers here; empty if there are."""
    found = shutil.which("qsub")
    text = Path(found).read_text("latin-1") if found else ""
    if "use Slurm" not in text:
        return "no wrappers of Slurm for Torque (see scripts/packages.sh)"
    return "" if _plugin() else f"no {_PLUGIN}"


def _plugin() -> Path | None:
    return next((path for path in Path("/usr/lib").glob(f"*/{_PLUGIN}")), None)


@contextlib.contextmanager
def variables_of_pbs(cluster: SlurmCluster) -> Iterator[None]:
    """Jobs that start meanwhile have them."""
    plugins = cluster.root / "plugstack.conf"
    plugins.write_text(f"required {_plugin()}\n")
    try:
        yield
    finally:
        plugins.unlink()


class TorqueLab(PbsLab):
    """A folder in which one test makes its experiments through the wrappers."""

    cluster: SlurmCluster  # type: ignore[assignment]

    def site(self, **changes: Any) -> Site:
        """The resolved site; mappings are merged one level deep."""
        limits = {
            "poll_min_s": 1,
            "kill_wait_s": self.cluster.options.kill_wait_s,
            "signal_lead_s": 20,
        }
        torque = {"extends": "generic-torque", "scheduler": "torque", "default_partition": "batch"}
        return super().site(**{**torque, "limits": limits, "capabilities": {}, **changes})
