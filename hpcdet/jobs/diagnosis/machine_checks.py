"""Checks of one machine: interpreter, packages, accelerators, HDF5, MPI, launcher.

``python -m hpcdet.jobs.diagnosis.machine_checks FOLDER`` prints the findings of a node as JSON.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from hpcdet.errors import HpcdetError
from hpcdet.jobs import one_shot_job
from hpcdet.jobs.diagnosis import rank_steps, storage_checks
from hpcdet.jobs.diagnosis.finding import SiteFinding, skipped
from hpcdet.jobs.script.environment import for_step
from hpcdet.launchers import opening as launchers
from hpcdet.schedulers.calls import polling
from hpcdet.site import Site, folders
from hpcdet.site_files.load_site import from_resolved
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files

_NEEDED = ("torch", "h5py", "numpy", "blake3", "click", "jinja2", "pydantic", "yaml")
_LIMIT_S = 120
_DEVICES = ("/dev/nvidiactl", "/dev/kfd")
"""Made by the drivers of NVIDIA's and AMD's accelerators."""

_TORCH = """\
import torch
print(torch.__version__)
"""
_GPU = """\
import torch
count = torch.cuda.device_count()
for device in range(count):
    assert torch.ones(8, device=f"cuda:{device}").sum().item() == 8
print(count, *sorted({torch.cuda.get_device_name(device) for device in range(count)}), sep="\\n")
"""
_HDF5 = """\
import h5py, subprocess, sys
with h5py.File(sys.argv[1], "w") as file:
    file["x"] = [1, 2]
    file.flush()
    opened = subprocess.run([sys.executable, "-Pc", "import h5py, sys; h5py.File(sys.argv[1])",
                             sys.argv[1]], stderr=subprocess.DEVNULL).returncode == 0
with h5py.File(sys.argv[1]) as file:
    assert list(file["x"]) == [1, 2]
print(h5py.__version__, "on HDF5", h5py.version.hdf5_version,
      "without locks" if opened else "with locks")
"""
_MPI = """\
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(mpi4py.__version__, "on", MPI.Get_library_version().splitlines()[0].strip("\\0 "))
"""
_HOST = "import socket; print(socket.gethostname())"


def guarded(check: str, look: Callable[[], Iterator[SiteFinding]]) -> list[SiteFinding]:
    """Return the findings of one check; its failure is a finding, too."""
    found: list[SiteFinding] = []
    try:
        found.extend(look())
    except HpcdetError as error:
        found.append(SiteFinding("error", str(error).splitlines()[0], error.hint, check))
    except OSError as error:
        what = f"{error.filename or ''}: {error.strerror}"
        found.append(SiteFinding("error", what, check=check))
    return found


def python() -> Iterator[SiteFinding]:
    """The interpreter, and whether the packages are there; none of them is imported."""
    version = sys.version.split()[0]
    yield SiteFinding("ok", f"Python {version}, {sys.executable}", check="python")
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        hint = "install hpcdet anew: python -m pip install hpcdet"
        what = f"packages are missing: {', '.join(missing)}"
        yield SiteFinding("error", what, hint, "packages")
    else:
        what = "every package that hpcdet needs is installed"
        yield SiteFinding("ok", what, check="packages")


def imports(folder: Path) -> Iterator[SiteFinding]:
    """Check that ranks' packages can be imported and used, each in its own process.

    Args:
        folder: where HDF5 writes a file; on the file system of experiments.
    """
    code, said = _python(_TORCH)
    if code:
        hint = "python -m pip install torch, for the libraries of the nodes"
        yield SiteFinding("error", f"import torch: {_last(said)}", hint, "torch")
        yield skipped("gpu", "torch cannot be imported")
    else:
        yield SiteFinding("ok", f"torch {said}", check="torch")
        yield _gpu()
    yield _hdf5(folder)
    yield _mpi()


def _gpu() -> SiteFinding:
    """Compute on each accelerator that torch sees; compare with what drivers have made."""
    code, said = _python(_GPU)
    if code:
        hint = "torch for this driver: pytorch.org/get-started"
        return SiteFinding("error", f"computing on an accelerator: {_last(said)}", hint, "gpu")
    count, *names = said.splitlines()
    if count != "0":
        return SiteFinding("ok", f"{count} accelerators compute: {', '.join(names)}", check="gpu")
    drivers = [path for path in _DEVICES if Path(path).exists()]
    if not drivers:
        return SiteFinding("ok", "this machine has no accelerator", check="gpu")
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    what = f"{drivers[0]} is here, and torch sees no accelerator"
    hint = "a torch that is built for it, and a job that asks for it (directives)"
    if hidden is not None:
        hint = f"CUDA_VISIBLE_DEVICES={hidden} says which this job has; directives ask for them"
    return SiteFinding("warning", what, hint, "gpu")


def _hdf5(folder: Path) -> SiteFinding:
    file = folder / f"h5py-{os.getpid()}.h5"
    code, said = _python(_HDF5, str(file))
    file.unlink(missing_ok=True)
    if code:
        hint = "where the file system has no locks: HDF5_USE_FILE_LOCKING: 'FALSE' under env"
        return SiteFinding("error", f"h5py: {_last(said)}", hint, "hdf5")
    return SiteFinding("ok", f"h5py {said}", check="hdf5")


def _mpi() -> SiteFinding:
    if importlib.util.find_spec("mpi4py") is None:
        hint = "for distributed.backend: mpi: python -m pip install 'hpcdet[mpi]'"
        return skipped("mpi", "mpi4py is not installed", hint)
    code, said = _python(_MPI)
    hint = "load the MPI module that it was built with" if code else ""
    what = f"mpi4py: {_last(said)}" if code else f"mpi4py {said}"
    return SiteFinding("warning" if code else "ok", what, hint, "mpi")


def cache(nonce: str) -> Iterator[SiteFinding]:
    """Check that the scheduler's answers, and running limits, are shared with other hosts.

    Args:
        nonce: a file of this name lies in the cache folder of the host that asks (``leave``).
    """
    wanted, folder = polling.wanted_folder(), polling.cache_folder()
    if (folder / nonce).exists():
        yield SiteFinding("ok", f"answers of the scheduler are shared in {folder}", check="cache")
        return
    what = f"{wanted} is another folder here than on the host that asks: answers are not shared"
    if folder != wanted:
        what = f"{wanted} cannot be written: answers of the scheduler are kept in {folder}"
    hint = "export HPCDET_CACHE=FOLDER, one that all hosts share and write, before hpcdet submit"
    yield SiteFinding("warning", f"{what}, and limits.max_running with them", hint, "cache")


@contextlib.contextmanager
def leave(nonce: str) -> Iterator[None]:
    """Leave a file of this name in this host's cache folder meanwhile, for ``cache``."""
    left = polling.cache_folder() / nonce
    files.write_once(left, b"")
    try:
        yield
    finally:
        left.unlink(missing_ok=True)


def launcher(site: Site, partition: str | None) -> Iterator[SiteFinding]:
    """Check that the launcher starts a process inside this allocation."""
    view = site.view(partition)
    kind = launchers.kind_of(site, view)
    chosen, given = launchers.launcher(kind), view.launcher
    if not chosen.command:
        yield SiteFinding("ok", "ranks are processes of the worker", check="launcher")
        return
    program = given.command or chosen.command
    argv = [program, *chosen.alone, *given.args, sys.executable, "-Pc", _HOST]
    code, said = _run(argv, for_step(os.environ, site))
    if code:
        hint = "launcher in the site file: kind and args"
        yield SiteFinding("error", f"{program}: {_last(said)}", hint, "launcher")
    else:
        yield SiteFinding("ok", f"{program} starts a rank on {_last(said)}", check="launcher")


def _python(code: str, *arguments: str) -> tuple[int, str]:
    return _run([sys.executable, "-Pc", code, *arguments])


def _run(argv: list[str], environ: Mapping[str, str] = os.environ) -> tuple[int, str]:
    """Exit code and what was printed, at most ``_LIMIT_S`` seconds later."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environ,
            text=True,
            errors="replace",
            timeout=_LIMIT_S,
            check=False,
        )
    except FileNotFoundError:
        return 127, f"there is no {argv[0]} on PATH"
    except subprocess.TimeoutExpired:
        return 124, f"no end in {_LIMIT_S} s"
    return done.returncode, done.stdout.strip()


def _last(text: str) -> str:
    return text.strip().splitlines()[-1] if text.strip() else "it ended without a word"


def main(argv: list[str]) -> int:
    """``FOLDER NONCE WALLTIME_S [PARTITION]``: look at a node, and at what is between two.

    The folder holds a site, and ``seen`` with the nonce, written on the machine that asks.
    """
    place, nonce, walltime_s = Path(argv[0]), argv[1], int(argv[2])
    partition = argv[3] if len(argv) > 3 else None

    def seen() -> Iterator[SiteFinding]:
        ok = (place / "seen").read_text() == nonce
        what = "it reads what was written elsewhere" if ok else "it reads an old file"
        yield SiteFinding("ok" if ok else "error", what, check="visibility")

    # what is half done is removed when the job is canceled, and the folder is not made again
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    os.chdir(place)
    site = from_resolved(ExperimentPaths(place).site)
    apart = folders.scratch(site, place.parent)
    looks: list[tuple[str, Callable[[], Iterator[SiteFinding]]]] = [
        ("python", python),
        ("visibility", seen),
        ("cache", lambda: cache(nonce)),
        ("launcher", lambda: launcher(site, partition)),
        ("collectives", lambda: rank_steps.findings(site, partition, place, walltime_s)),
        ("torch", lambda: imports(Path())),
        ("creation", lambda: storage_checks.findings(place.parent)),
    ]
    if apart:
        looks.append(("creation", lambda: storage_checks.findings(apart)))
    found: list[SiteFinding] = []
    for check, look in looks:
        files.replace(Path(one_shot_job.STAGE), f"looking at {check}".encode())
        found += guarded(check, look)
    print(json.dumps([asdict(finding) for finding in found]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
