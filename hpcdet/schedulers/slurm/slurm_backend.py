"""The backend for Slurm: its faces, each imported where it is first asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdet.schedulers.common.backend import (
    Backend,
    FactsFace,
    InsideFace,
    NamesFace,
    ScriptFace,
)
from hpcdet.schedulers.common.base import Scheduler

if TYPE_CHECKING:
    from hpcdet.site import Site


class SlurmBackend:
    """``backend.Backend`` for Slurm."""

    name = "slurm"
    cluster = True

    def control(self, site: Site) -> Scheduler:
        """See ``backend.Backend``."""
        from hpcdet.schedulers.slurm.slurm import SlurmScheduler

        return SlurmScheduler(site)

    @property
    def script(self) -> ScriptFace:
        """Directives of ``sbatch``."""
        from hpcdet.schedulers.slurm.script import slurm_script

        return slurm_script

    @property
    def inside(self) -> InsideFace:
        """A worker's questions inside its allocation."""
        from hpcdet.schedulers.slurm import slurm_inside

        return slurm_inside

    @property
    def names(self) -> NamesFace:
        """Variables and ids."""
        from hpcdet.schedulers.slurm import slurm_names

        return slurm_names

    @property
    def facts(self) -> FactsFace:
        """What the cluster says of itself."""
        from hpcdet.schedulers.slurm import slurm_facts

        return slurm_facts


BACKEND: Backend = SlurmBackend()
