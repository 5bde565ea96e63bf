"""Where a result came from: code, commit, packages, interpreter, host."""

from __future__ import annotations

import getpass
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Collection, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import hpcdet
from hpcdet.jobs import environment, secrets
from hpcdet.store import files

MAX_DIFF = 1024**2
_GIT_S = 20


def collect(
    model_dir: Path, code: dict[str, str], templates: list[Path], include: Sequence[Path] = ()
) -> dict[str, Any]:
    """What is recorded of an experiment when it is made.

    Args:
        code: path to SHA-256 of each file in the snapshot.
        templates: folders where the scripts of all its jobs come from.
        include: what is in the snapshot besides the model folder.
    """
    return {
        "schema": 1,
        "created_at": files.now(),
        "hpcdet": hpcdet.__version__,
        "user": getpass.getuser(),
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "packages": packages(),
        "modules": [name for name in os.environ.get("LOADEDMODULES", "").split(":") if name],
        "environment": environment.carried(),
        "templates": [str(folder) for folder in templates],
        "model_dir": str(model_dir.resolve()),
        "include": [str(path.expanduser().resolve()) for path in include],
        "code": code,
        "git": git(model_dir, code),
    }


def packages() -> dict[str, str]:
    """Name and version of every installed distribution."""
    found = {d.metadata["Name"]: d.version for d in metadata.distributions() if d.metadata["Name"]}
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def git(folder: Path, code: Collection[str] = ()) -> dict[str, Any] | None:
    """Commit, remote and what is not committed of a folder; None if it is in no repository.

    Args:
        code: paths of the snapshot; those of them that differ from the commit, or that it has
            not at all, are ``uncommitted``.
    """
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    # what is left out of the snapshot as a secret stays out of the record, too
    secret = (f":(exclude,glob)**/{name}" for name in secrets.NAMES)
    diff = _git(folder, "diff", "--no-ext-diff", "--no-textconv", "HEAD", "--", ".", *secret) or ""
    note = ""
    if kind := secrets.found(diff.encode()):
        diff, note = "", f"left out: it holds {kind}"
    elif len(diff) > MAX_DIFF:
        diff, note = "", f"left out: it has {len(diff)} characters"
    remote = _git(folder, "remote", "get-url", "origin")
    return {
        "commit": commit.strip(),
        "remote": secrets.without_login(remote.strip()) if remote else "",
        "dirty": bool(diff or note),
        "diff": secrets.without_login(diff),
        "diff_note": note,
        "uncommitted": uncommitted(folder, code),
    }


def uncommitted(folder: Path, code: Collection[str]) -> list[str]:
    """Which files of a snapshot of the folder are in no commit as they are, and which it lacks.

    Empty where git knows nothing of the folder.
    """
    tracked = _names(folder, "ls-files", "-z")
    if not tracked:
        return []
    changed = _names(folder, "diff", "--name-only", "-z", "--relative", "HEAD", "--", ".")
    new = {path for path in code if path not in tracked}
    return sorted(new | {path for path in changed if path in code or not (folder / path).exists()})


def _names(folder: Path, *arguments: str) -> set[str]:
    return {name for name in (_git(folder, *arguments) or "").split("\0") if name}


def _git(folder: Path, *arguments: str) -> str | None:
    """What git prints, or None where it fails, is missing, or takes too long."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(folder), *arguments],
            capture_output=True,
            env={**environ, "GIT_TERMINAL_PROMPT": "0"},
            stdin=subprocess.DEVNULL,
            timeout=_GIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None
