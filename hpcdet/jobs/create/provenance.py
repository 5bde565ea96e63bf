"""Provenance of results: code, commit, packages, interpreter, host."""

from __future__ import annotations

import getpass
import os
import platform
import socket
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import hpcdet
from hpcdet.jobs.create import likely_secrets, repository
from hpcdet.jobs.create.repository import Repository
from hpcdet.jobs.script import environment
from hpcdet.process import installed_packages
from hpcdet.site_files import load_site
from hpcdet.store.config import numerics
from hpcdet.store.fs import files


class LoadedFrom(Protocol):
    """A loaded config with the origins of its values."""

    @property
    def origins(self) -> Mapping[str, str]: ...

    @property
    def sources(self) -> Sequence[str]: ...


MAX_DIFF = 1024**2
DERIVED = "derived"
"""The origin of a value that stands in no config and is no default."""
_DIFF = ("diff", "--no-ext-diff", "--no-textconv", "--ignore-submodules=all")


def collect(
    model_dir: Path,
    code: dict[str, str],
    templates: list[Path],
    include: Sequence[Path] = (),
    private: Sequence[str] = (),
    more: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The provenance of an experiment at its creation.

    Args:
        code: path to SHA-256 of each file in the snapshot.
        templates: folders where the scripts of all its jobs come from.
        include: what is in the snapshot besides the model folder.
        private: paths of the snapshot of which no difference is recorded.
        more: what else there is to record: of its submission, its policy, its images.
    """
    return {
        "schema": 1,
        "created_at": files.now(),
        "hpcdet": hpcdet.__version__,
        "user": getpass.getuser(),
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "processor": numerics.processor(),
        "cores": numerics.cores(),
        "blas": numerics.installed_blas(),
        "variables": numerics.variables(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "packages": packages(),
        "modules": [name for name in os.environ.get("LOADEDMODULES", "").split(":") if name],
        "environment": environment.carried(),
        "templates": [str(folder) for folder in templates],
        "model_dir": str(model_dir.resolve()),
        "include": [str(path.expanduser().resolve()) for path in include],
        "code": code,
        "git": git(model_dir, code, private),
        **(more or {}),
    }


def submission(
    argv: Sequence[str],
    literal: Mapping[str, Any],
    resolved: Mapping[str, Any],
    loaded: LoadedFrom,
) -> dict[str, Any]:
    """The command of a submission, its folder, and where every value of the config comes from.

    Args:
        argv: words of the command; none of a submission by other means.
        literal: ``data.secrets``, which no record holds.
    """
    command = {"argv": likely_secrets.shown(argv, literal), "cwd": os.getcwd()} if argv else {}
    found = {key: origin_of(key, loaded.origins) for key, _ in load_site.walk(resolved)}
    read = [str(path.absolute()) for path in map(Path, loaded.sources) if path.is_file()]
    return {**command, "config_files": read, "origins": found}


def origin_of(key: str, origins: Mapping[str, str]) -> str:
    """Return the origin of a value: its own or that of the nearest key above it."""
    places = (key.rsplit(".", depth)[0] for depth in range(key.count(".") + 1))
    return next((origins[place] for place in places if place in origins), DERIVED)


def packages() -> dict[str, str]:
    """Name and version of every installed distribution."""
    return dict(sorted(installed_packages.installed().items(), key=lambda item: item[0].lower()))


def git(
    folder: Path, code: Collection[str] = (), private: Sequence[str] = ()
) -> dict[str, Any] | None:
    """Commit, remote and what is not committed of a folder; None if it is in no repository.

    No program of the repository's configuration is run (``jobs.create.repository``). Of one that
    belongs to another user the commit alone is recorded.

    Args:
        code: paths of the snapshot; those of them that differ from the commit, or that it has
            not at all, are ``uncommitted``.
        private: files of the folder whose differences are left out of ``diff``.
    """
    with repository.opened(folder) as found:
        if found is None or (commit := found.git(folder, "rev-parse", "HEAD")) is None:
            return None
        diff, note = _diff(found, folder, private)
        return {
            "commit": commit.strip(),
            "remote": likely_secrets.without_login(found.remote),
            "dirty": bool(diff or note) and not found.owner,
            "diff": likely_secrets.without_login(diff),
            "diff_note": note,
            "uncommitted": _uncommitted(found, folder, code),
        }


def _diff(found: Repository, folder: Path, private: Sequence[str]) -> tuple[str, str]:
    """Return the uncommitted changes of a folder, or the reason that they are not recorded."""
    if found.owner:
        return "", f"not looked at: the repository belongs to {found.owner}"
    # what is left out of the snapshot as a secret stays out of the record, too
    secret = [f":(exclude,glob)**/{name}" for name in likely_secrets.NAMES]
    some = [f":(exclude,literal){path}" for path in private]
    diff = found.git(folder, *_DIFF, "HEAD", "--", ".", *secret, *some)
    if diff is None:
        return "", "left out: git failed"
    if kind := likely_secrets.found(diff.encode()):
        return "", f"left out: it holds {kind}"
    if len(diff) > MAX_DIFF:
        return "", f"left out: it has {len(diff)} characters"
    named = [f":(literal){path}" for path in private]
    if named and found.git(folder, *_DIFF, "--name-only", "HEAD", "--", *named):
        return diff, "without that of files with secrets"
    return diff, ""


def uncommitted(folder: Path, code: Collection[str]) -> list[str]:
    """Return files of a snapshot that are in no commit as they are, or that it lacks.

    Empty where git knows nothing of the folder, or its repository belongs to another user.
    """
    with repository.opened(folder) as found:
        return [] if found is None else _uncommitted(found, folder, code)


def _uncommitted(found: Repository, folder: Path, code: Collection[str]) -> list[str]:
    tracked = set() if found.owner else _names(found, folder, "ls-files", "-z")
    if not tracked:
        return []
    listing = (*_DIFF, "--name-only", "-z", "--relative", "HEAD", "--", ".")
    changed = _names(found, folder, *listing)
    new = {path for path in code if path not in tracked}
    return sorted(new | {path for path in changed if path in code or not (folder / path).exists()})


def _names(found: Repository, folder: Path, *arguments: str) -> set[str]:
    return {name for name in (found.git(folder, *arguments) or "").split("\0") if name}
