"""``python -m hpcdet.worker.listener FILE``: a step that only listens.

During Slurm's GraceTime the batch step, and steps that start then, receive no signal; a step that
ran before does. This one writes the signal's name into a file and goes on listening.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from hpcdet.store.fs import files

NOTICES = (signal.SIGTERM, signal.SIGUSR2)


def listen(path: Path) -> None:
    """Record notices for ever. They are blocked first, so that none is lost or fatal."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    while True:
        heard = signal.sigwait(NOTICES)
        files.replace(path, signal.Signals(heard).name.encode())


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, NOTICES)
    listen(Path(sys.argv[1]))
