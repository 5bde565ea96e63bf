"""The duties of a rank to the launcher that started it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from hpcdet.process.console import say
from hpcdet.process.ranks import PEER_LOST

_LOOK_S = 0.5


def end_with_it(env: Mapping[str, str] = os.environ) -> None:
    """End this process when ``mpirun``, or its daemon on this node, is gone.

    They end their ranks themselves unless they are killed. Ranks that have not started MPI do not
    notice that, and would train on while the trial is believed lost. The other launchers' ranks
    end with their parent in other ways.
    """
    if "OMPI_COMM_WORLD_RANK" in env or "MPI_LOCALRANKID" in env:
        threading.Thread(target=_watch, args=(os.getppid(),), name="launcher", daemon=True).start()


def _watch(parent: int) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # for the main thread
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    say("the launcher of this rank has exited")
    os._exit(PEER_LOST)


def end_with_rank(lock: Path) -> None:
    """End this script when the rank that runs its command is gone, however that ended.

    Shells and launchers lie between them, so no signal of the kernel's reaches it. The rank holds
    a lock while it lives, which a container with process numbers of its own sees as well.

    Args:
        lock: the file; where it is absent, this does nothing.
    """
    threading.Thread(target=_wait, args=(lock,), name="rank", daemon=True).start()


def _wait(lock: Path) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    with contextlib.suppress(OSError), lock.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        say("the rank that runs this script has exited")
        os._exit(PEER_LOST)


def say_goodbye() -> None:
    """Finalize an MPI that was started here: else the launcher takes a good end for a crash.

    Returns when all ranks are about to end well; with those that crash, the launcher ends this one.
    """
    mpi = getattr(sys.modules.get("mpi4py"), "MPI", None)
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.Finalize()
