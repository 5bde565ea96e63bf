"""An image folder for Charliecloud: the Python of the tests with its libraries, nothing of hpcdet.

Its packages are those of the tests, shown at ``/opt/packages``; of an editable installation there
is no hpcdet in that folder.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

PACKAGES = "/opt/packages"
_FOLDERS = ("bin", "dev", "etc", "home", "opt/packages", "proc", "sys", "tmp", "usr/bin")
_LEFT_OUT = ("__pycache__", "test", "tests", "site-packages", "ensurepip", "idlelib", "*.a")


def build(folder: Path, *mount_points: Path) -> Path:
    """Make the image; return the path of its interpreter inside it.

    Args:
        mount_points: folders of the host that it can show in their places.
    """
    for name in (*_FOLDERS, *(str(path).lstrip("/") for path in mount_points)):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in ("passwd", "group", "hosts", "resolv.conf"):
        (folder / "etc" / name).touch()
    prefix, version = Path(sys.base_prefix), sysconfig.get_python_version()
    inside = folder / str(prefix).lstrip("/")
    python = prefix / "bin" / f"python{version}"
    _copy(python, folder)
    library = Path(sysconfig.get_path("stdlib", vars={"installed_base": str(prefix)}))
    shutil.copytree(
        library,
        folder / str(library).lstrip("/"),
        ignore=shutil.ignore_patterns(*_LEFT_OUT),
        symlinks=True,
    )
    packages = inside / "lib" / f"python{version}" / "site-packages"
    packages.mkdir(parents=True, exist_ok=True)
    (packages / "packages.pth").write_text(f"{PACKAGES}\n")
    site = Path(sysconfig.get_path("purelib"))
    needing = [python, Path("/usr/bin/env"), *library.rglob("*.so"), *site.rglob("torch/lib/*.so*")]
    for path in _libraries(needing):
        if not path.is_relative_to(site):
            _copy(path, folder)
    _copy(Path("/usr/bin/env"), folder)
    return python


def _copy(path: Path, folder: Path) -> None:
    target = folder / str(path).lstrip("/")
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)


def _libraries(files: list[Path]) -> set[Path]:
    """Return the shared libraries that files need, and the loader."""
    done = subprocess.run(["ldd", *files], capture_output=True, text=True, check=False)
    words = (line.split() for line in done.stdout.splitlines())
    named = (next((word for word in line if word.startswith("/")), "") for line in words)
    return {Path(name) for name in named if name and not name.endswith(":") and Path(name).exists()}
