"""The life of a rank from the fork to its end: as a new process would be, and then the rank."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing.process
import os
import random
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from hpcdet.nursery.imports import MainModule
from hpcdet.process import command_line, ranks, signals
from hpcdet.store.fs import files
from hpcdet.warm.fork_messages import ForkRequest

_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None, use_errno=True).prctl


class Descriptors:
    """The folder and the log of an attempt, open: a rank that cannot have them is not forked.

    Raises:
        OSError: one of them cannot be opened.
    """

    def __init__(self, request: ForkRequest) -> None:
        self.folder = os.open(request.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self.log = os.open(request.log, flags, files.FILE_MODE)
        except OSError:
            os.close(self.folder)
            raise

    def close(self) -> None:
        """Close both."""
        os.close(self.folder)
        os.close(self.log)


@dataclass(frozen=True)
class Rank:
    """A rank that is to be forked.

    Attributes:
        own: what it has in its environment on top.
        group: the process group that it joins; 0: one of its own.
        leave: frees the child of what only its parent has.
    """

    main: MainModule
    request: ForkRequest
    own: dict[str, str]
    group: int
    descriptors: Descriptors
    leave: Callable[[], None]

    def fork(self) -> int:
        """Fork it, with notices blocked until it takes them itself; return its process."""
        parent = os.getpid()
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signals.NOTICES)
        try:
            child = os.fork()
            if child == 0:
                self._be(parent)
            with contextlib.suppress(OSError):  # as the child does: whoever comes first
                os.setpgid(child, self.group or child)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        return child

    def _be(self, parent: int) -> NoReturn:
        """Be the rank. It never returns, whatever happens."""
        code = 1
        try:
            os.setpgid(0, self.group)
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
            self.leave()
            _begin_anew(self.request, self.own, self.descriptors)
            self.main.run()  # which ends the process
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)


def _begin_anew(request: ForkRequest, own: dict[str, str], descriptors: Descriptors) -> None:
    """Leave nothing of the nursery that a new process would not have."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number, source in enumerate((nothing, descriptors.log, descriptors.log)):
        os.dup2(source, number)
    os.close(nothing)
    os.fchdir(descriptors.folder)
    # a process that is spawned finds the main module from where this one is said to have begun
    vars(multiprocessing.process)["ORIGINAL_DIR"] = os.getcwd()
    descriptors.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signals.forget()
    import numpy as np  # both are there: imported as ranks do, after all else is prepared
    import torch

    os.environ.update(request.environ | own)
    ranks.renumber()
    command_line.show(request.argv)
    sys.argv[1:] = request.argv[3:]
    random.seed()
    np.random.seed()
    torch.default_generator.seed()  # that of a device is made when the device is first used
    multiprocessing.current_process().authkey = os.urandom(32)
