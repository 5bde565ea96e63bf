"""``backend.NamesFace`` of PBS's family: variables, and ids such as ``12.vm`` and ``12[3].vm``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hpcdet.schedulers.pbs_family import pbs_ids


class PbsNames:
    """``backend.NamesFace``.

    Args:
        scheduler: what people may write before an id, with a colon.
        shows: the command that shows when jobs may start, without their ids; "": there is none.
    """

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

    def __init__(self, scheduler: str, shows: str = "") -> None:
        number, server = r"\d+(?:\[\d*\])?", r"[A-Za-z0-9][A-Za-z0-9_.-]*"
        self._written = re.compile(rf"(?:{scheduler}:)?({number}(?:\.{server})?)")
        self._shows = shows

    def task_id(self, job: str, index: int) -> str:
        """See ``backend.NamesFace``."""
        return pbs_ids.task_id(job, index)

    def job_of(self, task: str) -> str:
        """See ``backend.NamesFace``."""
        return pbs_ids.job_and_index(task)[0]

    def reads(self, text: str) -> bool:
        """See ``backend.NamesFace``."""
        return self._written.fullmatch(text) is not None

    def means(self, text: str, job: str) -> bool:
        """See ``backend.NamesFace``. ``12`` is the job or the array of that number."""
        if (found := self._written.fullmatch(text)) is None:
            return False
        named = self.job_of(found[1])
        if "." in named:
            return named == job
        return named in (pbs_ids.key(job), pbs_ids.key(job).removesuffix("[]"))

    def waited_for(self, text: str) -> str | None:
        """See ``backend.NamesFace``. No job waits for a single task of an array."""
        found = self._written.fullmatch(text)
        return found[1] if found and self.job_of(found[1]) == found[1] else None

    def look(self, jobs: Sequence[str]) -> str:
        """See ``backend.NamesFace``."""
        return f"{self._shows} {' '.join(jobs)}" if jobs and self._shows else ""


NAMES = PbsNames("pbs", "qstat -T")
