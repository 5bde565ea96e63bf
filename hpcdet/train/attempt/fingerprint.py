"""The environment that a run's bits depend on, from the processor to the code.

Its parts, short texts by name, are in each checkpoint, and compared when one is gone on from. The
whole, with the version of every package and the threads that a node's cores allow, is a file of
the experiment under its digest, which the journal's ``start`` names.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcdet import __version__
from hpcdet.errors import ConfigError
from hpcdet.process.console import say
from hpcdet.store.config import numerics
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files
from hpcdet.store.trials.staged_data import DIGEST as DATA_DIGEST

Fingerprint = dict[str, str]

_FIRST = frozenset({
    "code", "cuda", "data", "device", "hpcdet", "image", "machine", "modules", "numpy", "packages",
    "python", "threads", "torch", "world",
})  # fmt: skip
"""Parts of checkpoints from before the processor was one of them: nobody knows the others."""
_VERSION = re.compile(r"^  - (.*(?:Math Kernel Library|MKL-DNN|oneDNN).*)$", re.MULTILINE)
"""Math libraries that torch is built with, as ``torch.__config__`` lists them."""

IMAGE = "HPCDET_IMAGE"
"""The digest of the image that the worker has found for this rank; not set on the host."""


def submitted(experiment: ExperimentPaths | None) -> Mapping[str, Any]:
    """The record of the submission; {} where there is none."""
    record = files.read_json(experiment.provenance) if experiment else None
    return record if isinstance(record, dict) else {}


def take(
    experiment: ExperimentPaths | None,
    world: int,
    threads: int,
    packages: Mapping[str, str],
    record: Mapping[str, Any],
) -> Fingerprint:
    """The parts of the fingerprint, by name.

    Args:
        packages: versions by name, as ``installed_packages.installed`` finds them.
        record: that of ``submitted``.
    """
    listed = sorted(f"{name}=={version}" for name, version in packages.items())
    parts = {
        "hpcdet": __version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "torch": str(torch.__version__),
        "numpy": str(np.__version__),
        "cuda": str(torch.version.cuda or ""),
        "world": str(world),
        "threads": str(threads),
        "packages": _hash("\n".join(listed).encode()),
        "processor": numerics.processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "blas": "; ".join(numerics.loaded_blas()),
        "torch_blas": "; ".join(_VERSION.findall(torch.__config__.show())),
        **_switches(),
        **{f"${name}": value for name, value in numerics.variables().items()},
    }
    if torch.cuda.is_available():
        parts["device"] = torch.cuda.get_device_name()
        parts["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
    if modules := os.environ.get("LOADEDMODULES"):  # of Lmod and Environment Modules
        parts["modules"] = modules
    for name, variable in (("image", IMAGE), ("data", DATA_DIGEST)):
        if found := os.environ.get(variable):
            parts[name] = found
    if experiment is not None:
        parts["code"] = code_digest(experiment.code, record.get("code"))
    return parts


def _switches() -> dict[str, str]:
    """Switches of torch for determinism and precision."""
    wanted = torch.are_deterministic_algorithms_enabled()
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    return {
        "deterministic": "warn" if wanted and only_warns else str(wanted).lower(),
        "cudnn_deterministic": str(torch.backends.cudnn.deterministic).lower(),
        "cudnn_benchmark": str(torch.backends.cudnn.benchmark).lower(),
        "cudnn_tf32": _told(lambda: torch.backends.cudnn.allow_tf32),
        "matmul_precision": _told(torch.get_float32_matmul_precision),
    }


def _told(ask: Callable[[], object]) -> str:
    try:
        return str(ask()).lower()
    except RuntimeError:  # torch has two interfaces, and does not say what the newer one was told
        return "by backend"


def keep(experiment: ExperimentPaths, parts: Fingerprint, packages: Mapping[str, str]) -> str:
    """Write the whole fingerprint to the experiment, unless another attempt of the same has.

    Returns:
        Its digest.
    """
    cores = {"cores": numerics.cores(), "interop": torch.get_num_interop_threads()}
    whole = {
        "schema": 1,
        "parts": parts,
        "threads": {**cores, **numerics.loaded_blas()},
        "packages": dict(packages),
    }
    text = files.canonical(whole)
    path = experiment.fingerprint(_hash(text))
    try:
        if not path.exists():
            files.write_once(path, text + b"\n")
    except OSError as error:  # training is worth more than its record
        say(f"the environment is not recorded: {error.strerror}")
    return path.stem


def differences(before: Fingerprint, now: Fingerprint) -> list[str]:
    """List the changes, each as ``name: old -> new``."""
    names = sorted(before.keys() | now.keys())
    if "processor" not in before:
        names = [name for name in names if name in _FIRST]
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
