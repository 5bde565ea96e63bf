"""``python -m hpcdet.schedulers.pbs.remote_shell [-OPTION ...] HOST COMMAND ...``.

What Open MPI takes for ``ssh``: it starts a command on another host of the job by ``pbs_tmrsh``,
which starts a program, not a line of a shell. PBS sends SIGTERM to every process of the job on its
first host, this one too; ``mpirun`` would give the step up if it died of it. So it ignores notices:
the ranks are told through ``mpirun``.
"""

from __future__ import annotations

import os
import signal
import sys

from hpcdet.schedulers.pbs_family import pbs_commands

_NOTICES = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)


def command(arguments: list[str]) -> list[str]:
    """Return the command that starts what ``ssh ARGUMENTS`` would start."""
    words = list(arguments)
    while words and words[0].startswith("-"):
        taken = 2 if words[0] in ("-l", "-p", "-o", "-i") else 1
        del words[:taken]
    host, *line = words
    return [pbs_commands.path("pbs_tmrsh"), host, "/bin/sh", "-c", " ".join(line)]


if __name__ == "__main__":
    for number in _NOTICES:
        signal.signal(number, signal.SIG_IGN)
    argv = command(sys.argv[1:])
    os.execvp(argv[0], argv)
