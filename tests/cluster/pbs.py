"""The PBS server that answers on this host, if one does; tests start none."""

from __future__ import annotations

import functools
import getpass
import json
import os
import subprocess
from typing import Any

from hpcdet.schedulers.pbs_family import pbs_commands
from tests.experiments import until

_PROBE = ("qsub", "-f", "-h", "-N", "probe", "-j", "oe", "-o", "/dev/null", "--", "/bin/true")


@functools.cache
def why_not() -> str:
    """Why no test can run jobs of PBS here; "" if they can."""
    try:
        asked = subprocess.run(
            [pbs_commands.path("qstat"), "-B"], capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no PBS here: {error}"
    if asked.returncode != 0:
        return f"no server of PBS answers here: {asked.stderr.strip()}"
    server = PbsServer()
    probe = server.call(*_PROBE)
    if probe.returncode != 0:
        return f"this user may not submit jobs to PBS: {probe.stderr.strip()}"
    server.call("qdel", "-x", probe.stdout.strip())
    return ""


class PbsServer:
    """A server of PBS, as one of its users sees it; some tests want a manager of it."""

    def __init__(self) -> None:
        self.user = getpass.getuser()

    def environment(self) -> dict[str, str]:
        """What a user of it has in the shell."""
        where = os.path.dirname(pbs_commands.path("qsub"))
        return {"PATH": f"{os.environ['PATH']}:{where}"}

    def call(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run a command of PBS."""
        return subprocess.run(
            [pbs_commands.path(argv[0]), *argv[1:]],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=120,
            cwd="/",
        )

    def check(self, *argv: str) -> str:
        """Run a command of PBS that has to succeed; returns what it prints."""
        done = self.call(*argv)
        assert done.returncode == 0, f"{argv}: {done.returncode} {done.stdout}{done.stderr}"
        return done.stdout

    def attributes(self, *jobs: str) -> dict[str, dict[str, Any]]:
        """The attributes of jobs and their subjobs, ended ones too, by id."""
        if not jobs:
            return {}
        shown = json.loads(self.call("qstat", "-x", "-t", "-f", "-F", "json", *jobs).stdout)
        found: dict[str, dict[str, Any]] = shown.get("Jobs", {})
        return found

    def jobs(self) -> list[dict[str, str]]:
        """All jobs of this user, in the words that ``Run`` knows."""
        mine = self.check("qselect", "-x", "-u", self.user).split()
        return [
            {
                "JobId": job,
                "JobName": str(one["Job_Name"]),
                "JobState": f"{one['job_state']}/{one.get('substate')}",
                "Reason": str(one.get("comment", "")),
                "Restarts": str(one.get("run_count", 0)),
                "ExitCode": str(one.get("Exit_status", "")),
                "NodeList": str(one.get("exec_host", "")),
            }
            for job, one in self.attributes(*mine).items()
        ]

    def clear(self) -> None:
        """End all jobs of this user, and wait for that."""

        def live() -> list[str]:
            return self.check("qselect", "-u", self.user).split()

        if jobs := live():
            self.call("qdel", "-W", "force", *jobs)
        until(lambda: not live(), lambda: str(live()), 120)
