"""``backend.FactsFace`` of PBS: what a site file leaves open, asked once and kept for a day.

``qstat -Bf`` and ``qstat -Qf`` are run on the login node; what they say lies in
``pbs-facts-KEY.json`` of the user's cache folder, one file for each server as this host sees it.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hpcdet.errors import Unavailable
from hpcdet.schedulers.common.polling import cache_folder
from hpcdet.schedulers.common.survey import ClusterSurvey
from hpcdet.schedulers.pbs import pbs_commands, pbs_query
from hpcdet.schedulers.pbs.answers.pbs_queues import Attributes
from hpcdet.site import Site
from hpcdet.store.fs import files

commands = ("qsub", "qstat")


def _of_server(key: str, path: str) -> str | None:  # noqa: ARG001
    """A value of PBS's configuration file on this host, as ``PBS_SERVER``."""
    return pbs_commands.configuration().get(key)


keys: Mapping[str, Callable[[str, str], str | None]] = {"pbs_conf": _of_server}
asked = (
    "capabilities.history",
    "limits.max_array",
    "limits.max_submit",
    "limits.kill_wait_s",
)
reads = frozenset({
    "capabilities.rerun", "capabilities.arrays", "capabilities.history", "chunk", "place",
    "partitions.*.chunk",
})  # fmt: skip
"""See ``survey.ReadsKeys``."""
generic = "generic-pbs"
launcher = "mpirun"

GOOD_FOR_S = 86400.0
_KILL_DELAY_S = 10.0
"""What PBS waits between TERM and KILL where the queue says nothing."""
_PER_USER = re.compile(r"\[u:PBS_GENERIC=(\d+)\]")


def no_cluster(path: str) -> bool:
    """See ``backend.FactsFace``. A server that is down for the moment is a cluster."""
    return shutil.which("qsub", path=path) is not None and not pbs_commands.server()


def survey() -> ClusterSurvey:
    """See ``survey.Surveys``."""
    from hpcdet.schedulers.pbs import server_survey  # late: one verb asks it

    return server_survey.survey()


def slots_here(site: Site) -> int | None:  # noqa: ARG001
    """See ``backend.FactsFace``."""
    return None


def resolved(
    site: Site, pool: str | None = None, *, ask: bool = True, fresh: bool = False
) -> tuple[Site, str]:
    """See ``backend.FactsFace``."""
    if not site.open:
        return site, ""
    at, known, why = _known(fresh) if ask else (0.0, None, "it was not asked")
    answers = dict(_answers(known, site, pool)) if known is not None else {}
    values: dict[str, Any] = {}
    for part in ("capabilities", "limits"):
        told = {
            key.partition(".")[2]: value
            for key, (value, _) in answers.items()
            if key.startswith(part)
        }
        values[part] = getattr(site, part).model_copy(update=told)
    assumed = site.open - answers.keys()
    day = datetime.fromtimestamp(at, UTC).date()
    origins = {key: f"asked on {day}: {source}" for key, (_, source) in answers.items()}
    origins |= dict.fromkeys(assumed, f"assumed: {why or 'the server does not say'}")
    found = site.settled(values, origins)
    if known is None:
        return found, f"{why}: careful values are assumed for {', '.join(sorted(assumed))}"
    return found, f"{why}: what it said on {day} stands" if why and fresh else ""


def _answers(
    known: Attributes, site: Site, pool: str | None
) -> Iterator[tuple[str, tuple[Any, str]]]:
    """Key to value and source of each open key that the server has an answer for."""
    server = known.get("", {})
    queue = str(site.view(pool).directives.get("partition") or server.get("default_queue", ""))
    of_queue = known.get(queue, {})
    history = server.get("job_history_enable", "False")
    found: dict[str, tuple[Any, str]] = {
        "capabilities.history": (history == "True", f"job_history_enable={history}")
    }
    widest = of_queue.get("max_array_size") or server.get("max_array_size", "")
    if widest.isdecimal():
        found["limits.max_array"] = (int(widest), f"max_array_size={widest}")
    queued = [
        (int(limit[1]), f"max_queued={limit[1]} of {'the server' if one is server else queue}")
        for one in (server, of_queue)
        if (limit := _PER_USER.search(one.get("max_queued", "")))
    ]
    if queued:
        found["limits.max_submit"] = min(queued)
    delay = of_queue.get("kill_delay", "")
    waits = float(delay) if delay.isdecimal() else _KILL_DELAY_S
    found["limits.kill_wait_s"] = (waits, f"kill_delay={delay or 'unset'} of {queue or 'a queue'}")
    return ((key, value) for key, value in found.items() if key in site.open)


def _known(fresh: bool) -> tuple[float, Attributes | None, str]:
    """Return when the server said what, and why it says nothing new; ask now if that is old."""
    try:
        path = _path()
        before = files.read_json(path)
        at, said = (before["at"], before["said"]) if isinstance(before, dict) else (0.0, None)
        if said is not None and not fresh and 0 <= time.time() - at < GOOD_FOR_S:
            return at, said, ""
        try:
            now = pbs_query.attributes()
        except Unavailable as error:
            return at, said, f"the server did not answer ({error.what})"
        at = time.time()
        files.replace(path, files.canonical({"at": at, "said": now}))
        return at, now, ""
    except (OSError, Unavailable, KeyError, TypeError) as error:
        return 0.0, None, f"the user's cache folder cannot be used ({error})"


def _path() -> Path:
    seen = (socket.getfqdn(), pbs_commands.path("qstat"), pbs_commands.server())
    digest = hashlib.sha256(repr(seen).encode()).hexdigest()[:16]
    return cache_folder() / f"pbs-facts-{digest}.json"
