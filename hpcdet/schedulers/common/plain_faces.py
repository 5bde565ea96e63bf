"""Faces of a backend for a scheduler that needs nothing of its own there: to begin from."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcdet.errors import ConfigError
from hpcdet.schedulers.common.allocation import Allocation, ShownNode, by_script
from hpcdet.schedulers.common.job_script import Translation
from hpcdet.schedulers.common.request import NodeRequest, ScriptRequest, UserOptions
from hpcdet.store.folder.records import Reason

if TYPE_CHECKING:
    from hpcdet.site import Site
    from hpcdet.site.models import Directives


class PlainScript:
    """``backend.ScriptFace``: templates say all; users have no options."""

    worker = "local/worker.sh.j2"
    sentinel = ""
    directive = ""
    lists = False

    def options(self, request: ScriptRequest) -> Any:
        """There are none."""

    def check(self, user: UserOptions) -> None:
        """Options for schedulers mean nothing here."""

    def place(self, pool: str | None, user: UserOptions) -> str | None:
        """See ``backend.ScriptFace``."""
        return pool

    def project(self, directives: Directives, user: UserOptions) -> str:
        """See ``backend.ScriptFace``."""
        return ""

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
    own: tuple[str, ...] = ()


class PlainInside:
    """``backend.InsideFace``: hpcdet's variables say all there is to know."""

    early_s = 0.0
    says: tuple[tuple[str, Reason], ...] = ()

    def allocation(self, environ: Mapping[str, str], walltime_s: float | None) -> Allocation:
        """See ``backend.InsideFace``."""
        return by_script(environ)

    def stands(self, allocation: Allocation) -> bool:
        """See ``backend.InsideFace``."""
        return True

    def returns(self, allocation: Allocation) -> bool:
        """See ``backend.InsideFace``. A task asks for it itself here."""
        return False

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


class PlainNames:
    """``backend.NamesFace``: a task's id is its job's, ``_`` and a number.

    Args:
        written: pattern of what people write; its first group is the job's id.
    """

    def __init__(self, written: str) -> None:
        self._written = re.compile(written)

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
        return task.rpartition("_")[0] or task

    def reads(self, text: str) -> bool:
        """See ``backend.NamesFace``."""
        return self._written.fullmatch(text) is not None

    def means(self, text: str, job: str) -> bool:
        """See ``backend.NamesFace``."""
        found = self._written.fullmatch(text)
        return found is not None and found[1] == job

    def waited_for(self, text: str) -> str | None:
        """See ``backend.NamesFace``."""
        return None

    def look(self, jobs: Sequence[str]) -> str:
        """See ``backend.NamesFace``."""
        return ""


class PlainFacts:
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
        return None

    def resolved(
        self, site: Site, pool: str | None = None, *, ask: bool = True, fresh: bool = False
    ) -> tuple[Site, str]:
        """See ``backend.FactsFace``."""
        return site, ""
