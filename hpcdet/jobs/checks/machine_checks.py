"""The checks of ``doctor`` on one machine: interpreter, packages, accelerators, file system.

``python -m hpcdet.jobs.checks.machine_checks FOLDER`` prints the findings of a node as JSON.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from hpcdet.errors import HpcdetError
from hpcdet.jobs.checks.site_checks import SiteFinding
from hpcdet.jobs.script.environment import for_step
from hpcdet.launchers import opening as launchers
from hpcdet.site import Site, folders
from hpcdet.site_files.load_site import from_resolved
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files

_NEEDED = ("torch", "h5py", "numpy", "blake3", "click", "jinja2", "pydantic", "yaml")
_SKEW_S = 5.0
_LIMIT_S = 120

_TORCH = """\
import torch
names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
print(torch.__version__)
print(f"{len(names)} accelerators: {', '.join(sorted(set(names)))}" if names else "no accelerator")
"""
_H5PY = """\
import h5py, sys
with h5py.File(sys.argv[1], "w") as file:
    file["x"] = [1, 2]
with h5py.File(sys.argv[1]) as file:
    assert list(file["x"]) == [1, 2]
print(h5py.__version__, "on HDF5", h5py.version.hdf5_version)
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
    """Check that ranks' packages can be imported and used, each in its own process."""
    code, said = _python(_TORCH)
    version, _, devices = said.partition("\n")
    if code:
        yield SiteFinding("error", f"import torch: {_last(said)}", "see its first error", "torch")
    else:
        yield SiteFinding("ok", f"torch {version}", check="torch")
        yield SiteFinding("ok", devices, check="accelerators")
    file = folder / f"h5py-{os.getpid()}.h5"
    code, said = _python(_H5PY, str(file))
    file.unlink(missing_ok=True)
    if code:
        hint = "where HDF5 cannot lock files: HDF5_USE_FILE_LOCKING=FALSE under the site's env"
        yield SiteFinding("error", f"h5py: {_last(said)}", hint, "h5py")
    else:
        yield SiteFinding("ok", f"h5py {said}", check="h5py")
    if importlib.util.find_spec("mpi4py") is None:
        yield SiteFinding("ok", "not installed; only the mpi backend needs it", check="mpi4py")
        return
    code, said = _python(_MPI)
    hint = "load the MPI module that it was built with" if code else ""
    what = _last(said) if code else f"mpi4py {said}"
    yield SiteFinding("warning" if code else "ok", what, hint, "mpi4py")


def folder(root: Path) -> Iterator[SiteFinding]:
    """Check the three guarantees of the file system that hpcdet rests on."""
    place = next(path for path in (root, *root.parents) if path.exists())
    made = Path(tempfile.mkdtemp(prefix=".hpcdet-doctor-", dir=place))
    try:
        once, twice = (files.write_once(made / "once", text) for text in (b"1", b"2"))
        if not once or twice or (made / "once").read_bytes() != b"1":
            what = f"{place}: exclusive creation by link does not work"
            yield SiteFinding("error", what, check="files")
        files.replace(made / "once", b"3")
        if (made / "once").read_bytes() != b"3":
            what = f"{place}: replacing a file by rename does not work"
            yield SiteFinding("error", what, check="files")
        skew = (made / "once").stat().st_mtime - time.time()
    finally:
        shutil.rmtree(made)
    yield SiteFinding("ok", f"{place}: files can be created once and replaced whole", check="files")
    if abs(skew) > _SKEW_S:
        hint = "ages in hpcdet status are off by this much"
        yield SiteFinding("warning", f"the file server's clock is {skew:+.0f} s off", hint, "clock")
    else:
        yield SiteFinding("ok", "the clock agrees with the file server's", check="clock")
    free = os.statvfs(place)
    yield SiteFinding(
        "ok", f"{place}: {free.f_bavail * free.f_frsize / 1e9:.1f} GB free", check="room"
    )
    if free.f_files and free.f_favail < 10_000:
        what = f"{place}: {free.f_favail} inodes are left"
        yield SiteFinding("warning", what, "a trial needs 60", "room")


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
    """``FOLDER NONCE [PARTITION]``: look at a node.

    The folder holds a site, and ``seen`` with the nonce, written on the machine that asks.
    """
    place, nonce, partition = Path(argv[0]), argv[1], argv[2] if len(argv) > 2 else None

    def seen() -> Iterator[SiteFinding]:
        ok = (place / "seen").read_text() == nonce
        what = "it reads what was written elsewhere" if ok else "it reads an old file"
        yield SiteFinding("ok" if ok else "error", what, check="visibility")

    site = from_resolved(ExperimentPaths(place).site)
    apart = folders.scratch(site, place.parent)
    found = [
        *python(),
        *guarded("torch", lambda: imports(place)),
        *guarded("files", lambda: folder(place.parent)),
        *(guarded("files", lambda: folder(apart)) if apart else ()),
        *guarded("visibility", seen),
        *guarded("launcher", lambda: launcher(site, partition)),
    ]
    print(json.dumps([asdict(finding) for finding in found]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
