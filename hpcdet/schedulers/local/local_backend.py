"""The backend for a machine without a scheduler: its faces, but for the running of jobs."""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING

from hpcdet.schedulers.common.backend import Backend
from hpcdet.schedulers.common.base import Scheduler
from hpcdet.schedulers.common.plain_faces import PlainFacts, PlainInside, PlainNames, PlainScript
from hpcdet.schedulers.common.survey import ClusterSurvey

if TYPE_CHECKING:
    from hpcdet.site import Site

_JOB = r"(?:local:)?(local-[0-9a-f]+-\d+(?:@[A-Za-z0-9.-]+)?)(?:_\d+)?"


class LocalFacts(PlainFacts):
    """``backend.FactsFace``: this machine runs the jobs."""

    def slots_here(self, site: Site) -> int | None:
        """See ``backend.FactsFace``."""
        from hpcdet.schedulers.local.local import shared_slots

        return site.slots or shared_slots()

    def survey(self) -> ClusterSurvey:
        """See ``survey.Surveys``."""
        host = socket.gethostname()
        rule = {"hostname": f"^{re.escape(host)}"}
        return ClusterSurvey(host.partition(".")[0], "this machine", self.generic, rule)


class LocalBackend:
    """``backend.Backend`` for this machine."""

    name = "local"
    cluster = False
    script = PlainScript()
    inside = PlainInside()
    names = PlainNames(_JOB)
    facts = LocalFacts()

    def control(self, site: Site) -> Scheduler:
        """See ``backend.Backend``."""
        from hpcdet.schedulers.local.local import LocalScheduler

        return LocalScheduler(slots=site.slots)


BACKEND: Backend = LocalBackend()
