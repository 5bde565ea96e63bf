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
        from hpcdet.schedulers.pbs.script import face

        return face

    @property
    def inside(self) -> InsideFace:
        """A worker's questions inside its allocation."""
        from hpcdet.schedulers.pbs import inside

        return inside

    @property
    def names(self) -> NamesFace:
        """Variables and ids."""
        from hpcdet.schedulers.pbs import names

        return names

    @property
    def facts(self) -> FactsFace:
        """What the server says of itself."""
        from hpcdet.schedulers.pbs import facts

        return facts


BACKEND: Backend = PbsBackend()
