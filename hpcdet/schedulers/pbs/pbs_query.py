"""Questions to the server about jobs, whatever it remembers of those that have ended."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Sequence

from hpcdet.errors import Unavailable
from hpcdet.schedulers.common.allocation import ShownNode
from hpcdet.schedulers.pbs import pbs_states
from hpcdet.schedulers.pbs_family import pbs_commands, pbs_ids, pbs_queues, pbs_text
from hpcdet.schedulers.pbs_family.pbs_commands import OVER
from hpcdet.schedulers.pbs_family.pbs_text import PbsRow

_AT_ONCE = 500
"""Jobs that one ``qstat`` is asked about."""
_forms: list[tuple[str, ...]] = [("-F", "json"), ()]
"""How ``qstat`` is asked in this process. Its JSON may be none where a value looks like a number,
and that of OpenPBS of 2026 has the first of several jobs only; what it prints without is complete.
"""
_ENDING_LOOKS, _ENDING_LOOK_S = 20, 0.5
"""How often, and how many seconds apart, a job that ends is looked at until it is finished."""
_NO_HISTORY = "not configured to maintain job history"
"""What a server says that is asked for ended jobs (``-x``) and keeps none; it says nothing else."""


def rows(jobs: Sequence[str]) -> list[PbsRow]:
    """Ask the server about some jobs, their subjobs included; unknown ones are left out.

    Raises:
        Unavailable: it does not answer, or says nothing about one of them.
    """
    found: list[PbsRow] = []
    for first in range(0, len(jobs), _AT_ONCE):
        found += _rows(jobs[first : first + _AT_ONCE])
    return found


def is_missed(job: str) -> bool:
    """True if a job waits for ever for another one whose end came before it.

    A server of OpenPBS tells those that wait before it calls a job finished. Who comes between is
    never told; who comes later need not wait.
    """
    over: set[str] = set()
    with contextlib.suppress(Unavailable):
        for _ in range(_ENDING_LOOKS):
            held = [one for one in rows([job]) if one.state == "H"]
            waits = {former for one in held for former in pbs_states.dependencies(one)}
            if waits & over:
                return True
            states = {one.id: one.state for one in rows(sorted(waits))}
            over = {former for former in waits if states.get(former) == "F"}
            if not over and "E" not in states.values():
                return False
            time.sleep(_ENDING_LOOK_S)
    return False


def named(name: str, user: str, server: str = "") -> list[str]:
    """The ids of a user's jobs of that name.

    Args:
        server: that is asked; "": the default one.

    Raises:
        Unavailable: it does not answer.
    """
    where = ["-q", f"@{server}"] if server else []
    done = _with_history("qselect", "-N", name, "-u", user, *where)
    if done.returncode != 0:
        raise pbs_commands.failure("qselect", done)
    return [job for line in done.stdout.splitlines() if (job := pbs_ids.parse(line))]


def occupied(*whose: str) -> str:
    """Print the tasks that run and, behind an empty line, the jobs that wait.

    Args:
        whose: options of ``qselect``.

    Raises:
        Unavailable: the server does not answer.
    """
    # subjobs are listed one by one; of an array that has begun some may wait
    running = pbs_commands.said(["qselect", "-T", "-s", "ERSU", *whose])
    waiting = pbs_commands.said(["qselect", "-s", "BHQTW", *whose])
    return f"{running.strip()}\n\n{waiting.strip()}"


def running_of(project: str) -> str:
    """Print the tasks that run of all users of a project, or of an account of that name.

    Raises:
        Unavailable: the server does not answer.
    """
    found = (
        pbs_commands.said(["qselect", "-T", "-s", "ERSU", option, project]).strip()
        for option in ("-P", "-A")
    )
    return "\n".join(found)


def running_in(queue: str, user: str) -> str:
    """Print the tasks of a user that run in a queue.

    Raises:
        Unavailable: the server does not answer.
    """
    return pbs_commands.said(["qselect", "-T", "-s", "ERSU", "-u", user, "-q", queue])


def attributes() -> dict[str, dict[str, str]]:
    """Attributes of queues and of the server. Raises Unavailable: it does not answer."""
    server, queues = (pbs_commands.said(["qstat", option]) for option in ("-Bf", "-Qf"))
    return pbs_queues.attributes(server, queues)


def hosts() -> list[ShownNode]:
    """The hosts of the cluster. Raises Unavailable: the server does not answer."""
    return pbs_queues.hosts(pbs_commands.said(["pbsnodes", "-a", "-F", "json"]))


def _rows(jobs: Sequence[str]) -> list[PbsRow]:
    for form in tuple(_forms):
        done = _with_history("qstat", "-t", "-f", *form, *jobs)
        if done.returncode not in (0, *OVER):
            raise pbs_commands.failure("qstat", done)
        found = (pbs_text.jobs if form else pbs_text.jobs_of_text)(done.stdout) or []
        told, gone = {row.id for row in found}, pbs_text.unknown(done.stderr)
        lacking = [job for job in jobs if job not in told and pbs_ids.key(job) not in gone]
        if not lacking:
            return found
        if form and len(jobs) > 1:
            _forms[:] = [()]  # it does so each time
    raise Unavailable(f"qstat said nothing about {', '.join(lacking[:3])}")


def _with_history(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    done = pbs_commands.ask([name, "-x", *words])
    if _NO_HISTORY in done.stderr:
        done = pbs_commands.ask([name, *words])
    return done
