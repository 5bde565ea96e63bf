"""The backend for PBS: its faces, each imported where it is first asked for."""

from __future__ import annotations

from hpcdet.schedulers.common.backend import (
    Backend,
    FactsFace,
    InsideFace,
    NamesFace,
    ScriptFace,
)
from hpcdet.schedulers.common.base import Scheduler
from hpcdet.site import Site


class PbsBackend:
    """``backend.Backend`` for OpenPBS and PBS Professional."""

    name = "pbs"
    cluster = True

    def control(self, site: Site) -> Scheduler:
        """See ``backend.Backend``."""
        from hpcdet.schedulers.pbs.pbs import PbsScheduler

        return PbsScheduler(site)

    @property
    def script(self) -> ScriptFace:
        """Directives of ``qsub``."""
        from hpcdet.schedulers.pbs.script import pbs_script

        return pbs_script

    @property
    def inside(self) -> InsideFace:
        """A worker's questions inside its allocation."""
        from hpcdet.schedulers.pbs import pbs_inside

        return pbs_inside

    @property
    def names(self) -> NamesFace:
        """Variables and ids."""
        from hpcdet.schedulers.pbs import pbs_names

        return pbs_names

    @property
    def facts(self) -> FactsFace:
        """What the server says of itself."""
        from hpcdet.schedulers.pbs import pbs_facts

        return pbs_facts


BACKEND: Backend = PbsBackend()
