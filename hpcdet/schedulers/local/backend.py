"""The backend for a machine without a scheduler: its faces, but for the running of jobs."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcdet.errors import ConfigError
from hpcdet.schedulers.common.allocation import Allocation, ShownNode, by_script
from hpcdet.schedulers.common.backend import Backend
from hpcdet.schedulers.common.base import Scheduler
from hpcdet.schedulers.common.job_script import Translation
from hpcdet.schedulers.common.request import NodeRequest, ScriptRequest, UserOptions
from hpcdet.schedulers.common.survey import ClusterSurvey
from hpcdet.site import Site
from hpcdet.site.models import Directives
from hpcdet.store.folder.records import Reason

_JOB = re.compile(r"(?:local:)?(local-[0-9a-f]+-\d+(?:@[A-Za-z0-9.-]+)?)(?:_\d+)?")


class LocalScript:
    """``backend.ScriptFace``: a script says what it needs in lines that the template has."""

    worker = "local/worker.sh.j2"
    sentinel = ""
    directive = ""

    def options(self, request: ScriptRequest) -> None:
        """There are none."""

    def check(self, user: UserOptions) -> None:
        """Options for schedulers mean nothing here."""

    def place(self, pool: str | None, user: UserOptions) -> str | None:
        """See ``backend.ScriptFace``."""
        return pool

    def refuse_undoing(self, pool: str | None, user: UserOptions, required: NodeRequest) -> None:
        """Nothing here sends a job elsewhere."""

    def check_capability(self, given: Mapping[str, Any]) -> None:
        """See ``backend.ScriptFace``."""
        if given:
            raise ValueError("this machine is its only node: write {}")

    def node_request(
        self, names: Sequence[str], known: Mapping[str, Mapping[str, Any]], site: str
    ) -> NodeRequest:
        """See ``backend.ScriptFace``."""
        return NodeRequest(tuple(names))

    def small(self, directives: Directives) -> Directives:
        """See ``backend.ScriptFace``."""
        return directives

    def refuse(self, text: str, template: str) -> None:
        """Whatever bash runs, runs."""

    def by_hand(self, script: Path) -> list[str]:
        """See ``backend.ScriptFace``."""
        return [str(script)]

    def translate(self, script: str, name: str) -> Translation:
        """See ``backend.ScriptFace``."""
        raise ConfigError("local jobs have no scripts of their own", where=name)


@dataclass(frozen=True)
class _NoDaemons:
    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()


class LocalInside:
    """``backend.InsideFace``: the supervisor of a job tells its tasks all there is."""

    early_s = 0.0
    says: tuple[tuple[str, Reason], ...] = ()

    def allocation(self, environ: Mapping[str, str], walltime_s: float | None) -> Allocation:
        """See ``backend.InsideFace``."""
        return by_script(environ)

    def stands(self, allocation: Allocation) -> bool:
        """See ``backend.InsideFace``."""
        return True

    def node_name(self, environ: Mapping[str, str]) -> str:
        """See ``backend.InsideFace``."""
        return socket.gethostname()

    def shown_node(self, name: str) -> ShownNode | None:
        """See ``backend.InsideFace``."""
        return None

    def granted_gpus(self, environ: Mapping[str, str]) -> int:
        """See ``backend.InsideFace``."""
        return 0

    def daemons(self, python: str, allocation: Allocation) -> _NoDaemons:
        """See ``backend.InsideFace``."""
        return _NoDaemons()


class LocalNames:
    """``backend.NamesFace``: ids such as ``local-65f2a-812@node7`` and ``…_3``."""

    job: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    binding: tuple[str, ...] = ()
    place: tuple[str, ...] = ()
    defaults: Mapping[str, str] = {}

    def task_id(self, job: str, index: int) -> str:
        """See ``backend.NamesFace``."""
        return f"{job}_{index}"

    def job_of(self, task: str) -> str:
        """See ``backend.NamesFace``."""
        return task.partition("_")[0]

    def reads(self, text: str) -> bool:
        """See ``backend.NamesFace``."""
        return _JOB.fullmatch(text) is not None

    def means(self, text: str, job: str) -> bool:
        """See ``backend.NamesFace``."""
        found = _JOB.fullmatch(text)
        return found is not None and found[1] == job

    def waited_for(self, text: str) -> str | None:
        """See ``backend.NamesFace``."""
        return None

    def look(self, jobs: Sequence[str]) -> str:
        """See ``backend.NamesFace``."""
        return ""


class LocalFacts:
    """``backend.FactsFace``: nothing is left to ask."""

    commands: tuple[str, ...] = ()
    keys: Mapping[str, Any] = {}
    asked: tuple[str, ...] = ()
    generic = "local"
    launcher = "local"

    def no_cluster(self, path: str) -> bool:
        """See ``backend.FactsFace``."""
        return False

    def slots_here(self, site: Site) -> int | None:
        """See ``backend.FactsFace``."""
        from hpcdet.schedulers.local.local import shared_slots

        return site.slots or shared_slots()

    def survey(self) -> ClusterSurvey:
        """See ``survey.Surveys``."""
        host = socket.gethostname()
        rule = {"hostname": f"^{re.escape(host)}"}
        return ClusterSurvey(host.partition(".")[0], "this machine", self.generic, rule)

    def resolved(
        self, site: Site, pool: str | None = None, *, ask: bool = True, fresh: bool = False
    ) -> tuple[Site, str]:
        """See ``backend.FactsFace``."""
        return site, ""


class LocalBackend:
    """``backend.Backend`` for this machine."""

    name = "local"
    cluster = False
    script = LocalScript()
    inside = LocalInside()
    names = LocalNames()
    facts = LocalFacts()

    def control(self, site: Site) -> Scheduler:
        """See ``backend.Backend``."""
        from hpcdet.schedulers.local.local import LocalScheduler

        return LocalScheduler(slots=site.slots)


BACKEND: Backend = LocalBackend()
