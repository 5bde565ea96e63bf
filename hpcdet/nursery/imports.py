"""The imports of a nursery, and the proof that they have started nothing."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import importlib.util
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType

from hpcdet.process import installed_packages, late_compiler
from hpcdet.store.config import numerics

RANK = "hpcdet.attempt"
FIRST_STEP = (
    RANK,
    "hpcdet.pytorch.entry",
    "hpcdet.pytorch.gradients.ddp",
    "hpcdet.store.cost.limits",
    "hpcdet.train.telemetry.probes",
    "psutil",
)
"""What ranks have imported when their first step is over, the user's own modules aside."""
_OF_SOME_VERSIONS = ("torch.profiler._cupti_monitor",)
_BY_DRIVER = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""Has torch ask NVML for devices: once CUDA has been asked, no fork of a process can use any."""
_PROBE_S = 10.0
_LOOK_S = 0.01


@dataclass(frozen=True)
class MainModule:
    """A module that ranks run as their main one, as it was when what it imports was imported."""

    spec: ModuleSpec
    code: CodeType

    @staticmethod
    def of(name: str) -> MainModule:
        """Read the code of a module."""
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert isinstance(spec.loader, SourceFileLoader)
        code = spec.loader.get_code(name)
        assert code is not None
        return MainModule(spec, code)

    def run(self) -> None:
        """Run it as ``python -m`` does."""
        main = ModuleType("__main__")
        vars(main).update(
            __file__=self.spec.origin,
            __cached__=self.spec.cached,
            __loader__=self.spec.loader,
            __package__=self.spec.parent,
            __spec__=self.spec,
        )
        sys.modules["__main__"] = sys.modules["__mp_main__"] = main  # as multiprocessing does
        sys.argv[0] = str(self.spec.origin)
        exec(self.code, vars(main))


class Unfit(Exception):
    """Ranks cannot be forked from this process."""


def load(wanted: Iterable[str]) -> MainModule:
    """Import what ranks need, and ``wanted``; return what a rank runs.

    Raises:
        Unfit: an import failed, or has started a thread.
    """
    late_compiler.put_off()
    gc.disable()  # as a rank that starts anew
    of_this = (name for name in _OF_SOME_VERSIONS if importlib.util.find_spec(name))
    with _devices_by_driver():
        for name in (*FIRST_STEP, *of_this, *wanted):
            try:
                importlib.import_module(name)
            except Exception as error:
                raise Unfit(f"import {name}: {type(error).__name__}: {error}") from error
            if started := _threads():
                raise Unfit(f"import {name} has started {started}")
    installed_packages.installed()  # which its record of the environment has
    program = MainModule.of(RANK)
    # a rank has it as its main module, and under no other name
    package, _, own = RANK.rpartition(".")
    del sys.modules[RANK]
    delattr(sys.modules[package], own)
    # what was printed meanwhile would be in each rank's output
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)
    gc.freeze()  # what ranks have in common stays so: their collector leaves it alone
    gc.enable()
    return program


@contextlib.contextmanager
def _devices_by_driver() -> Iterator[None]:
    """Have torch ask the driver meanwhile; ranks have the variable as a new process would."""
    before = os.environ.get(_BY_DRIVER)
    os.environ[_BY_DRIVER] = "1"
    try:
        yield
    finally:
        os.environ.pop(_BY_DRIVER, None)  # code may have done so
        if before is not None:
            os.environ[_BY_DRIVER] = before


def _threads() -> str:
    """The threads beside the main one, but for the pools of OpenBLAS, which survive a fork."""
    if others := [one.name for one in threading.enumerate() if one is not threading.main_thread()]:
        return f"the thread {others[0]}"
    count = len(os.listdir("/proc/self/task")) - 1
    if count:
        blas = numerics.loaded_blas().items()
        count -= sum(size - 1 for name, size in blas if name.startswith("OpenBLAS"))
    return f"{count} threads" if count > 0 else ""


def probe() -> None:
    """Have a child compute in parallel and differentiate, as a rank does.

    Raises:
        Unfit: it does not end well, or not in time.
    """
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            _compute()
            os._exit(0)
        os._exit(1)
    limit = time.monotonic() + _PROBE_S
    while time.monotonic() < limit:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            if status:
                raise Unfit(f"a first step in a fork ends with {os.waitstatus_to_exitcode(status)}")
            return
        time.sleep(_LOOK_S)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise Unfit(f"a first step in a fork takes more than {_PROBE_S:g} s")


def _compute() -> None:
    import torch

    if torch.cuda._is_in_bad_fork():
        raise RuntimeError("CUDA was initialized before the fork")
    torch.set_num_threads(max(2, torch.get_num_threads()))
    weight = torch.ones(1 << 17, requires_grad=True)
    torch.autograd.backward((weight * weight).exp().sum())
