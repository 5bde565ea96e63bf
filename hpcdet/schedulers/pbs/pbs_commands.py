"""PBS's commands: where they are, and what they are given and say."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpcdet.errors import Unavailable
from hpcdet.schedulers.common.variables import scrubbed
from hpcdet.schedulers.pbs import pbs_names
from hpcdet.schedulers.pbs.answers import pbs_text

_CONF = "/etc/pbs.conf"
_LIMIT_S = 120
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
    return found | {name: environ[name] for name in pbs_names.kept if environ.get(name)}


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
    """Run a command of PBS, without what this process inherited from another job.

    Raises:
        Unavailable: it is not there, or does not end in time.
    """
    # times are printed in the local time of who asks
    environ = {**scrubbed(os.environ, pbs_names), "LC_ALL": "C", "TZ": "UTC"}
    try:
        return subprocess.run(
            [path(argv[0]), *argv[1:]],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            env=environ,
            timeout=_LIMIT_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise Unavailable(
            f"there is no {argv[0]} on PATH",
            hint="run this on a host of the cluster, or load the module that has PBS's commands",
        ) from error
    except OSError as error:
        raise Unavailable(f"{argv[0]} cannot be run: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise Unavailable(
            f"{argv[0]} gave no answer in {_LIMIT_S} s",
            hint="the server of PBS may be overloaded or down (qstat -B); try again later",
        ) from error


def said(argv: Sequence[str]) -> str:
    """Return what a command prints.

    Raises:
        Unavailable: it failed.
    """
    done = run(argv)
    if done.returncode != 0:
        raise failure(argv[0], done)
    return done.stdout


def failure(name: str, done: subprocess.CompletedProcess[str], job: str = "") -> Unavailable:
    """Return the error for a command that failed."""
    why = pbs_text.message(done.stderr) or f"exit code {done.returncode}"
    return Unavailable(f"{name} failed: {why}", where=f"job {job}" if job else "")
