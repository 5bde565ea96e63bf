"""``python -m hpcdet.worker.remote PROGRAM ...``: the daemon of ``mpirun`` on another node.

Under Slurm it is a step, which receives the SIGTERM of a preemption, and would answer it by
killing its ranks within the grace period. So it ignores it: the worker tells the ranks through
``mpirun``. It ends when ``mpirun`` ends it or is gone.
"""

from __future__ import annotations

import os
import signal
import sys

if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
    os.execvp(sys.argv[1], sys.argv[1:])
