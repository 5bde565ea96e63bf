"""The environment that a run's bits depend on: interpreter, packages, modules, code, ranks."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Collection
from importlib import metadata
from pathlib import Path

import numpy as np
import torch

from hpcdet import __version__
from hpcdet.errors import ConfigError
from hpcdet.process.console import say
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files
from hpcdet.store.trials.staged_data import DIGEST as DATA_DIGEST

Fingerprint = dict[str, str]

IMAGE = "HPCDET_IMAGE"
"""The digest of the image that the worker has found for this rank; not set on the host."""


def take(experiment: ExperimentPaths | None, world: int, threads: int) -> Fingerprint:
    """The parts of the fingerprint, by name."""
    packages = sorted(f"{one.name}=={one.version}" for one in metadata.distributions())
    parts = {
        "hpcdet": __version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "torch": str(torch.__version__),
        "numpy": str(np.__version__),
        "cuda": str(torch.version.cuda or ""),
        "world": str(world),
        "threads": str(threads),
        "packages": _hash("\n".join(packages).encode()),
    }
    if torch.cuda.is_available():
        parts["device"] = torch.cuda.get_device_name()
    if modules := os.environ.get("LOADEDMODULES"):  # of Lmod and Environment Modules
        parts["modules"] = modules
    for name, variable in (("image", IMAGE), ("data", DATA_DIGEST)):
        if found := os.environ.get(variable):
            parts[name] = found
    if experiment is not None:
        record = files.read_json(experiment.provenance)
        known = record.get("code") if isinstance(record, dict) else None
        parts["code"] = code_digest(experiment.code, known)
    return parts


def digest(parts: Fingerprint) -> str:
    """One short text for all parts."""
    return _hash(files.canonical(parts))


def differences(before: Fingerprint, now: Fingerprint) -> list[str]:
    """List the changes, each as ``name: old -> new``."""
    names = sorted(before.keys() | now.keys())
    return [
        f"{name}: {before.get(name, '-')} -> {now.get(name, '-')}"
        for name in names
        if before.get(name) != now.get(name)
    ]


def compare(before: Fingerprint, now: Fingerprint, *, refuse: bool) -> None:
    """Say what changed since a checkpoint was made.

    Raises:
        ConfigError: something has, and is to be refused.
    """
    changed = differences(before, now)
    if not changed:
        return
    text = "the environment is not the checkpoint's; the same bits are not promised"
    if refuse:
        raise ConfigError(
            f"{text}: {', '.join(changed)}",
            where="on_env_change: refuse",
            hint="restore the environment, or resume with --set on_env_change=warn",
        )
    say(f"{text}: {', '.join(changed)}")


def code_digest(folder: Path, known: Collection[str] | None = None) -> str:
    """Digest over names and contents of the files in a folder.

    Args:
        known: the files that were submitted; what the code has put beside them (data that it
            fetched, its own output) is no code. None: all there are.
    """
    total = hashlib.sha256()
    paths = folder.rglob("*") if known is None else (folder / name for name in known)
    for path in sorted(paths):
        if path.is_file() and "__pycache__" not in path.parts:
            total.update(str(path.relative_to(folder)).encode() + b"\0")
            total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:16]


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
