"""A virtual environment with the packages that a run had.

Those that this interpreter has in the same version are linked from it, as they are; others are
installed by its pip, with the user's own settings.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import venv
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from hpcdet.errors import IntegrityError, Unavailable
from hpcdet.jobs.create import provenance
from hpcdet.read.capsule.factors import differing
from hpcdet.schedulers.common import processes
from hpcdet.store.folder import trust
from hpcdet.store.fs import files

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+!_-]*")
"""What pip takes for a package and its version, and for no option, file or address."""
FOLDER = Path("restored", "environments")
"""Below the folder of all experiments."""
OURS = "hpcdet"
_SAID = 6


@dataclass(frozen=True)
class RestoredPackages:
    """An interpreter with the recorded packages.

    Attributes:
        python: its path; "": this one has them all.
        installed: those that pip installed, as ``NAME==VERSION``.
        unrestored: what is not as it was, each with why.
    """

    python: str = ""
    installed: Sequence[str] = ()
    unrestored: Sequence[str] = ()


def restore(recorded: Mapping[str, str], version: str, root: Path) -> RestoredPackages:
    """Return an interpreter with these packages, made at the first call.

    Args:
        version: of the interpreter that had them.
        root: the folder of all experiments, which the nodes see.

    Raises:
        IntegrityError: a package cannot be installed; nothing is left behind.
        ConfigError: another user may change the environment, whose code would run.
        Unavailable: the environment cannot be written.
    """
    here = provenance.packages()
    lacking = _unrestored(recorded, here, version)
    wanted = {name: number for name, number in recorded.items() if name != OURS}
    if wanted == {name: number for name, number in here.items() if name != OURS}:
        return RestoredPackages(unrestored=lacking)
    missing = [_named(name, v) for name, v in wanted.items() if not _is_here(name, v, here)]
    place = root / FOLDER / _name(wanted)
    python = place / "bin" / "python"
    if not os.path.lexists(place):
        _make(place, missing, [OURS, *(name for name, v in wanted.items() if here.get(name) == v)])
    for mine in (root / FOLDER.parts[0], root / FOLDER, place, python.parent):
        trust.refuse_writable_by_others(mine, "environment")
    return RestoredPackages(str(python), missing, lacking)


def as_now(recorded: Mapping[str, str], version: str) -> RestoredPackages:
    """Return this interpreter as it is; what it has in another version is not restored."""
    here = provenance.packages()
    names = [name for name in differing(recorded, here) if name != OURS]
    shown = [
        f"{name} {recorded.get(name, 'not there')} (now {here.get(name, 'not there')})"
        for name in names[:_SAID]
    ]
    more = [f"{len(names) - _SAID} more"] if len(names) > _SAID else []
    lacking = [f"packages: {', '.join(shown + more)}"] if names else []
    return RestoredPackages(unrestored=[*_unrestored(recorded, here, version), *lacking])


def _named(name: str, version: str) -> str:
    """Return a package for pip. Raises IntegrityError: pip would take it for something else."""
    if not (_NAME.fullmatch(name) and _VERSION.fullmatch(version)):
        what = f"{name[:60]!r} {version[:60]!r} is no package and version"
        raise IntegrityError(what, where="--env lock", hint="--env current takes what is here")
    return f"{name}=={version}"


def _is_here(name: str, version: str, here: Mapping[str, str]) -> bool:
    return here.get(name) == version and metadata.distribution(name).files is not None


def _unrestored(recorded: Mapping[str, str], here: Mapping[str, str], version: str) -> list[str]:
    """Return what no environment of this interpreter can have."""
    found = []
    this = ".".join(map(str, sys.version_info[:3]))
    if version and version != this:
        found.append(f"python {version}: this interpreter is {this}")
    ours = recorded.get(OURS)
    if ours and ours != here.get(OURS):
        found.append(f"{OURS} {ours}: it repeats the run as {here.get(OURS, 'another version')}")
    return found


def _name(wanted: Mapping[str, str]) -> str:
    """The name of an environment: of its base, its packages, and where linked ones come from."""
    parts = [sys.version, sys.prefix, *(f"{name}=={v}" for name, v in sorted(wanted.items()))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _make(place: Path, missing: Sequence[str], linked: Collection[str]) -> None:
    """Make the environment, whole or not at all."""
    files.make_folder(place.parent)
    draft = place.with_name(f".{place.name}.{os.getpid()}.draft")
    try:
        shutil.rmtree(draft, ignore_errors=True)
        venv.EnvBuilder(symlinks=True, with_pip=False).create(draft)
        python = draft / "bin" / "python"
        # into an empty environment: what is linked afterwards is out of pip's reach
        if missing:
            _install(python, missing)
        _link(draft / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}", linked)
        try:
            draft.rename(place)
        except OSError:
            if not place.is_dir():
                raise  # else another process was faster
    except OSError as error:
        what = f"cannot make an environment: {error.strerror or error}"
        raise Unavailable(what, where=str(place), hint="--env current goes without") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _install(python: Path, missing: Sequence[str]) -> None:
    """Install packages by this interpreter's pip, without what they depend on: all are listed.

    Raises:
        IntegrityError: one of them cannot be installed.
    """
    argv = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps"]
    quiet = ("--no-input", "--disable-pip-version-check", "--quiet")
    code, said = processes.ended([*argv, *quiet, "--", *missing])
    if code != 0:
        lines = [line for line in said.splitlines() if line.strip()]
        raise IntegrityError(
            f"packages of the run cannot be installed: {', '.join(missing)}",
            where="--env lock",
            hint="\n".join(["--env current takes what is here; pip says:", *lines[-_SAID:]]),
        )


def _link(lib: Path, names: Collection[str]) -> None:
    """Link packages of this interpreter: folders of one owner as wholes, else file by file."""
    site = lib / "site-packages"
    owners = Counter(
        top for one in metadata.distributions() for top in {f.parts[0] for f in _own(one)}
    )
    for name in names:
        one = metadata.distribution(name)
        for top in sorted({file.parts[0] for file in _own(one)}):
            source, target = Path(str(one.locate_file(top))), site / top
            if owners[top] == 1 and not target.exists() and source.exists():
                target.symlink_to(source)
        for file in _own(one):
            source, target = Path(str(one.locate_file(file))), site / file
            if os.path.lexists(target) or not source.exists():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(source)


def _own(one: metadata.Distribution) -> Iterator[metadata.PackagePath]:
    """Yield the files of a package below its site's folder."""
    return (file for file in one.files or () if file.parts[0] not in ("..", "/"))
