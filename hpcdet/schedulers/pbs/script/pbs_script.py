"""``backend.ScriptFace`` of PBS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcdet.schedulers.common.job_script import Translation
from hpcdet.schedulers.common.request import NodeRequest, ScriptRequest, UserOptions
from hpcdet.schedulers.pbs.script import host_requests
from hpcdet.schedulers.pbs.script.pbs_options import PbsDirectives, chosen, collect, parse
from hpcdet.site.models import Directives

worker = "pbs/worker.pbs.j2"
sentinel = "pbs/sentinel.pbs.j2"
directive = "#PBS"


def options(request: ScriptRequest) -> PbsDirectives:
    """See ``backend.ScriptFace``."""
    return collect(request)


def node_request(
    names: Sequence[str], known: Mapping[str, Mapping[str, Any]], site: str
) -> NodeRequest:
    """See ``backend.ScriptFace``."""
    return host_requests.of_capabilities(names, known, site)


def check(user: UserOptions) -> None:
    """See ``backend.ScriptFace``."""
    parse(user)


def place(pool: str | None, user: UserOptions) -> str | None:
    """See ``backend.ScriptFace``."""
    asked = chosen(pool, user).get("queue")
    return str(asked) if asked else None


def refuse_undoing(pool: str | None, user: UserOptions, required: NodeRequest) -> None:
    """See ``backend.ScriptFace``."""
    asked = chosen(pool, user)
    host_requests.added(asked, asked, required)


def check_capability(given: Mapping[str, Any]) -> None:
    """See ``backend.ScriptFace``."""
    host_requests.read(given)


def small(directives: Directives) -> Directives:
    """See ``backend.ScriptFace``. What a site adds for workers is in its chunks."""
    return directives


def refuse(text: str, template: str) -> None:
    """Whatever ``qsub`` takes, runs."""


def by_hand(script: Path) -> list[str]:
    """See ``backend.ScriptFace``."""
    return ["qsub", str(script)]


def translate(script: str, name: str) -> Translation:
    """See ``backend.ScriptFace``."""
    from hpcdet.schedulers.pbs.script import pbs_script_import

    return pbs_script_import.translate(script, name)
