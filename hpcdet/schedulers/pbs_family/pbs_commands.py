"""Commands of PBS's family: where they are, and what they are given and say."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpcdet.errors import Unavailable
from hpcdet.schedulers.calls import scheduler_commands
from hpcdet.schedulers.common import questions
from hpcdet.schedulers.pbs_family import pbs_text
from hpcdet.schedulers.pbs_family.pbs_names import NAMES

_CONF = "/etc/pbs.conf"
FINISHED, UNKNOWN = 35, 153
"""Exit codes: the job has ended; the server does not know it (any more)."""
OVER = frozenset({FINISHED, UNKNOWN})


def configuration(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The keys of PBS's own configuration file, with those that the environment overrides."""
    try:
        text = Path(environ.get("PBS_CONF_FILE") or _CONF).read_text()
    except (OSError, UnicodeDecodeError):
        text = ""
    pairs = (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
    found = {key.strip(): value.strip() for key, mark, value in pairs if mark}
    return found | {name: environ[name] for name in NAMES.kept if environ.get(name)}


def server(environ: Mapping[str, str] = os.environ) -> str:
    """The name of the server that the commands ask; "" if only they know it."""
    known = configuration(environ)
    return environ.get("PBS_DEFAULT") or known.get("PBS_SERVER", "")


@functools.cache
def path(name: str) -> str:
    """The path of a command; on hosts where it is not on PATH, that of PBS's installation."""
    installed = Path(configuration().get("PBS_EXEC", ""), "bin", name)
    return shutil.which(name) or (str(installed) if os.access(installed, os.X_OK) else name)


def run(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command, without what this process inherited from another job.

    Raises:
        Unavailable: it is not there, or does not end in time.
    """
    # times are printed in the local time of who asks
    settings = {"TZ": "UTC"}
    where = path(argv[0])
    return scheduler_commands.run(argv, NAMES, settings, whose="PBS", probe="qstat -B", path=where)


def ask(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command that asks the server.

    Raises:
        Unavailable: as ``run``, or none is answered here.
    """
    questions.refuse(argv[0])
    return run(argv)


def said(argv: Sequence[str]) -> str:
    """Return what a command prints that asks the server.

    Raises:
        Unavailable: it failed.
    """
    done = ask(argv)
    if done.returncode != 0:
        raise failure(argv[0], done)
    return done.stdout


def failure(name: str, done: subprocess.CompletedProcess[str], job: str = "") -> Unavailable:
    """Return the error for a command that failed."""
    why = pbs_text.message(done.stderr) or f"exit code {done.returncode}"
    return Unavailable(f"{name} failed: {why}", where=f"job {job}" if job else "")
