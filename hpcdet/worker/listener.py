"""``python -m hpcdet.worker.listener FILE``: a step that only listens.

During Slurm's GraceTime the batch step, and steps that start then, receive no signal; a step that
ran before does. This one writes the signal's name into a file and goes on listening. It ends
with its worker, whom it hears by its standard input: in a job that is being ended the launcher
kills no step any more, and one that lives on holds the nodes until the scheduler's last word.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from hpcdet.store.fs import files

NOTICES = (signal.SIGTERM, signal.SIGUSR2)


def listen(path: Path) -> None:
    """Record notices until the worker ends. They are blocked: none is lost or fatal."""
    threading.Thread(target=_end_with_worker, daemon=True).start()
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    while True:
        heard = signal.sigwait(NOTICES)
        files.replace(path, signal.Signals(heard).name.encode())


def _end_with_worker() -> None:
    """End the process with its input. A worker writes a line first: else none is passed on."""
    if os.read(0, 1):
        while os.read(0, 1):
            pass
        os._exit(os.EX_OK)


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, NOTICES)
    listen(Path(sys.argv[1]))
