"""``backend.NamesFace`` of PBS: its variables, and ids such as ``12.vm`` and ``12[3].vm``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hpcdet.schedulers.pbs.answers import pbs_ids

job = ("PBS_*", "NCPUS", "TMPDIR")
"""``TMPDIR`` is a folder of the job that goes with it."""
kept = (
    "PBS_CONF_FILE", "PBS_CONF_SYSLOG", "PBS_DEFAULT", "PBS_SERVER", "PBS_EXEC", "PBS_HOME",
    "PBS_PRIMARY", "PBS_SECONDARY", "PBS_BATCH_SERVICE_PORT", "PBS_AUTH_METHOD",
)  # fmt: skip
"""Say which server is meant, and how to reach it."""
binding: tuple[str, ...] = ()
place: tuple[str, ...] = ()
defaults: Mapping[str, str] = {}
_WRITTEN = re.compile(r"(?:pbs:)?(\d+(?:\[\d*\])?(?:\.[A-Za-z0-9][A-Za-z0-9_.-]*)?)")


def task_id(job: str, index: int) -> str:
    """See ``backend.NamesFace``."""
    return pbs_ids.task_id(job, index)


def job_of(task: str) -> str:
    """See ``backend.NamesFace``."""
    return pbs_ids.job_and_index(task)[0]


def reads(text: str) -> bool:
    """See ``backend.NamesFace``."""
    return _WRITTEN.fullmatch(text) is not None


def means(text: str, job: str) -> bool:
    """See ``backend.NamesFace``. ``12`` is the job or the array of that number."""
    if (found := _WRITTEN.fullmatch(text)) is None:
        return False
    named = job_of(found[1])
    if "." in named:
        return named == job
    return named in (pbs_ids.key(job), pbs_ids.key(job).removesuffix("[]"))


def waited_for(text: str) -> str | None:
    """See ``backend.NamesFace``. PBS takes no single task of an array."""
    found = _WRITTEN.fullmatch(text)
    return found[1] if found and job_of(found[1]) == found[1] else None


def look(jobs: Sequence[str]) -> str:
    """See ``backend.NamesFace``."""
    return f"qstat -T {' '.join(jobs)}" if jobs else ""
