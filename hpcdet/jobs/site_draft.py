"""The draft of a site file: the text of a shipped template, filled in from a survey."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from hpcdet.jobs.script.render import engine
from hpcdet.schedulers.common.survey import ClusterSurvey, QueueSurvey
from hpcdet.units import duration

_TEMPLATE = "site/site.yaml.j2"
_PLACES = (
    ("scratch", ("SCRATCH", "PSCRATCH", "WORK"), "? large, fast, purged"),
    ("project", ("PROJECT", "PROJECTDIR", "CFS"), "? not purged, and nodes write there"),
    ("local", ("LOCAL_SCRATCH", "JOBFS", "NVME"), "? disk of the node"),
)
"""Folders of a site, and the variables by which clusters usually name them."""


def draft(
    name: str, path: str, survey: ClusterSurvey, day: str, environ: Mapping[str, str] | None = None
) -> str:
    """Return the text of a site file that is valid as it is.

    Args:
        name: of the site.
        path: where the file will be, for the comments.
        day: of the survey.
        environ: variables of the user's shell; their names stand for folders.
    """
    environ = os.environ if environ is None else environ
    jinja = engine([])
    jinja.filters |= {"yaml": _yaml, "about": _about, "line": _line, "duration": duration}
    places = [
        (key, next((f"${one}" for one in names if environ.get(one)), ""), about)
        for key, names, about in _PLACES
    ]
    modules = "; login files are read first" if environ.get("LMOD_CMD") else ""
    values: dict[str, Any] = {
        "name": name,
        "path": path,
        "survey": survey,
        "day": day,
        "default": next((queue.name for queue in survey.queues if queue.default), ""),
        "paths": places,
        "modules": modules,
    }
    return jinja.get_template(_TEMPLATE).render(values)


def _yaml(value: Any) -> str:
    """Return a value as YAML in one line: JSON is YAML, too."""
    if isinstance(value, str) and value.replace("-", "").replace("_", "").isalnum():
        plain = value[0].isalpha() and value.lower() not in ("true", "false", "null", "yes", "no")
        return value if plain else _json(value)
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_yaml(key)}: {_json(each)}' for key, each in value.items())}}}"
    return _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _about(queue: QueueSurvey) -> str:
    """Return what a partition or queue is, in a line."""
    kind = f" {queue.accelerator}" if queue.accelerator else ""
    parts = [
        "one node" if queue.nodes == 1 else f"{queue.nodes} nodes",
        f"{queue.cpus_per_node} cores" if queue.cpus_per_node else "",
        f"{queue.memory_mib} MiB" if queue.memory_mib else "",
        f"{queue.slots_per_node}{kind} accelerators" if queue.slots_per_node else "",
    ]
    return _line(", ".join(part for part in parts if part))


def _line(text: str) -> str:
    """Return text for a comment, which a line break would end."""
    return " ".join(text.split())
