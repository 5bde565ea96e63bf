"""``backend.ScriptFace`` of Slurm."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcdet.errors import ConfigError
from hpcdet.schedulers.common.job_script import Translation
from hpcdet.schedulers.common.request import NodeRequest, ScriptRequest, UserOptions
from hpcdet.schedulers.slurm.script import node_requests
from hpcdet.schedulers.slurm.script.slurm_options import SIZES, Options, chosen, collect, parse
from hpcdet.site.models import Directives

_HETJOB = re.compile(r"^#SBATCH\s+(?:het|pack)job\b", re.MULTILINE)

worker = "slurm/worker.sbatch.j2"
sentinel = "slurm/sentinel.sbatch.j2"
directive = "#SBATCH"
lists = True


def options(request: ScriptRequest) -> Options:
    """See ``backend.ScriptFace``."""
    return collect(request)


def check(user: UserOptions) -> None:
    """See ``backend.ScriptFace``."""
    parse(user)


def place(pool: str | None, user: UserOptions) -> str | None:
    """See ``backend.ScriptFace``."""
    asked = chosen(pool, user).get("partition")
    return str(asked) if asked else None


def project(directives: Directives, user: UserOptions) -> str:
    """See ``backend.ScriptFace``."""
    return str({**directives, **parse(user)}.get("account") or "")


def refuse_undoing(pool: str | None, user: UserOptions, required: NodeRequest) -> None:
    """See ``backend.ScriptFace``."""
    asked = chosen(pool, user)
    node_requests.added(asked, asked, required)


def check_capability(given: Mapping[str, Any]) -> None:
    """See ``backend.ScriptFace``."""
    node_requests.read(given)


def node_request(
    names: Sequence[str], known: Mapping[str, Mapping[str, Any]], site: str
) -> NodeRequest:
    """See ``backend.ScriptFace``."""
    return node_requests.of_capabilities(names, known, site)


def small(directives: Directives) -> Directives:
    """See ``backend.ScriptFace``."""
    return {name: value for name, value in directives.items() if name not in SIZES}


def refuse(text: str, template: str) -> None:
    """See ``backend.ScriptFace``."""
    if _HETJOB.search(text):
        what = "heterogeneous jobs (hetjobs) are not supported"
        raise ConfigError(what, where=f"template {template}")


def by_hand(script: Path) -> list[str]:
    """See ``backend.ScriptFace``."""
    return ["sbatch", "--parsable", str(script)]


def translate(script: str, name: str) -> Translation:
    """See ``backend.ScriptFace``."""
    from hpcdet.schedulers.slurm.script import job_script_import

    return job_script_import.translate(script, name)
