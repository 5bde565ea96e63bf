"""``backend.ScriptFace`` of schedulers whose scripts are submitted by ``qsub``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcdet.schedulers.common.job_script import Translation
from hpcdet.schedulers.common.request import NodeRequest, ScriptRequest, UserOptions
from hpcdet.schedulers.pbs_family.host_requests import HostRequests
from hpcdet.schedulers.pbs_family.pbs_options import PbsDirectives, Sizes, chosen, collect, parse
from hpcdet.site.models import Directives


class QsubScript:
    """``backend.ScriptFace``.

    Args:
        sizes: returns the options that say how large a job is.
        hosts: policies' requirements of hosts.
    """

    worker = "pbs/worker.pbs.j2"
    sentinel = "pbs/sentinel.pbs.j2"
    directive = "#PBS"
    lists = False

    def __init__(self, sizes: Sizes, hosts: HostRequests) -> None:
        self._sizes, self._hosts = sizes, hosts

    def options(self, request: ScriptRequest) -> PbsDirectives:
        """See ``backend.ScriptFace``."""
        values = collect(request, self._sizes)
        if request.required is not None:
            asked = chosen(request.pool, request.user)
            values = self._hosts.added(values, asked, request.required)
        return PbsDirectives(values)

    def node_request(
        self, names: Sequence[str], known: Mapping[str, Mapping[str, Any]], site: str
    ) -> NodeRequest:
        """See ``backend.ScriptFace``."""
        return self._hosts.of_capabilities(names, known, site)

    def check(self, user: UserOptions) -> None:
        """See ``backend.ScriptFace``."""
        parse(user)

    def place(self, pool: str | None, user: UserOptions) -> str | None:
        """See ``backend.ScriptFace``."""
        asked = chosen(pool, user).get("queue")
        return str(asked) if asked else None

    def project(self, directives: Directives, user: UserOptions) -> str:
        """See ``backend.ScriptFace``. Sites charge the account where jobs have no project."""
        given = {**directives, **parse(user)}
        return str(given.get("project") or given.get("account") or "")

    def refuse_undoing(self, pool: str | None, user: UserOptions, required: NodeRequest) -> None:
        """See ``backend.ScriptFace``."""
        asked = chosen(pool, user)
        self._hosts.added(asked, asked, required)

    def check_capability(self, given: Mapping[str, Any]) -> None:
        """See ``backend.ScriptFace``."""
        self._hosts.read(given)

    def small(self, directives: Directives) -> Directives:
        """See ``backend.ScriptFace``. What a site adds for workers is in its chunks."""
        return directives

    def refuse(self, text: str, template: str) -> None:
        """Whatever ``qsub`` takes, runs."""

    def by_hand(self, script: Path) -> list[str]:
        """See ``backend.ScriptFace``."""
        return ["qsub", str(script)]

    def translate(self, script: str, name: str) -> Translation:
        """See ``backend.ScriptFace``."""
        from hpcdet.schedulers.pbs_family import pbs_script_import

        return pbs_script_import.translate(script, name)
