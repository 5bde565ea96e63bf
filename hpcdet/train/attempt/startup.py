"""Joining an attempt, or running alone: how a process comes to its session."""

from __future__ import annotations

import atexit
import ctypes
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from hpcdet.errors import NotFound
from hpcdet.process import deterministic, signals
from hpcdet.process.location import AttemptLocation
from hpcdet.process.ranks import Ranks
from hpcdet.store.config import overrides
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.folder.records import Trial
from hpcdet.train.attempt.session import Session
from hpcdet.train.attempt.verdicts import verdict_on
from hpcdet.train.checkpoints.deadline import Deadline
from hpcdet.train.comm.collectives import Peers
from hpcdet.train.meeting import rendezvous

_met = False
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt, in malloc.h
_KEPT_BYTES = 2**30
_LARGEST_BYTES = 2**25
"""What is larger has pages of its own, and gives them back at once. It is the most that a glibc
before 2.35 takes on 64 bits, half of a heap of its; it refuses anything above."""
_MALLOC_SET = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def meet() -> None:
    """Make the process group of the attempt that the environment names; done before, it stays.

    ``join`` calls it; code that needs the group earlier may call it before.

    Raises:
        ConfigError, Unavailable: as ``rendezvous.meet``.
    """
    place = AttemptLocation.from_environment()
    assert place is not None and place.experiment is not None
    config = overrides.of_attempt(place.experiment, place.attempt)
    _meet(Ranks.from_environment(), place, config)


def _meet(ranks: Ranks, place: AttemptLocation, config: Resolved) -> None:
    global _met
    if _met and dist.is_initialized():
        return
    backend = os.environ.get("HPCDET_BACKEND") or config.distributed.backend

    def tell(error: BaseException) -> None:
        verdict_on(error, "").write_once(place.attempt.verdict)

    rendezvous.meet(ranks, place.attempt.rendezvous, backend, tell)
    _met = True


def join(
    *,
    hparams: Mapping[str, Any] | None = None,
    storage: str | os.PathLike[str] | None = None,
    seed: int = 0,
) -> Session:
    """The session of the attempt that the environment names, or of a script that runs alone.

    The arguments count only where the script runs alone.

    Args:
        storage: a folder to go on from and to save in; by default a new one that is
            removed at the end.

    Raises:
        NotFound: the trial has no record.
        ConfigError: the environment or the config is wrong.
        Unavailable: the other ranks did not come.
    """
    signals.install()
    keep_memory()
    ranks = Ranks.from_environment()
    place = AttemptLocation.from_environment()
    if place is None:
        session = _alone(ranks, hparams or {}, storage, seed)
    else:
        session = _attached(ranks, place)
    session.seed()
    return session


def _attached(ranks: Ranks, place: AttemptLocation) -> Session:
    assert place.experiment is not None
    config = overrides.of_attempt(place.experiment, place.attempt)
    record = Trial.read(place.trial.record)
    if record is None:
        raise NotFound("there is no such trial", where=str(place.trial.record))
    torch.set_num_threads(config.reproducibility.threads or config.resources.cpus_per_slot)
    torch.backends.cudnn.benchmark = False
    if config.reproducibility.deterministic or config.reproducibility.elastic is not None:
        deterministic.demand()
    _meet(ranks, place, config)
    session = Session(ranks, place, record, config, Deadline.from_environment())
    session.length.read()
    return session


def _alone(
    ranks: Ranks,
    hparams: Mapping[str, Any],
    storage: str | os.PathLike[str] | None,
    seed: int,
) -> Session:
    rendezvous.meet(ranks, None)
    root = str(storage or "")
    if not root and ranks.chief:
        root = tempfile.mkdtemp(prefix="hpcdet-")
        atexit.register(shutil.rmtree, root, ignore_errors=True)
    root = Peers(ranks).broadcast(root)
    record = Trial(1, dict(hparams), seed)
    return Session(
        ranks, AttemptLocation.alone(Path(root)), record, Resolved(), Deadline.from_environment()
    )


def keep_memory(environment: Mapping[str, str] = os.environ) -> bool:
    """Keep up to 1 GiB of memory that one step frees and the next one asks for again.

    glibc gives memory that lies free at the end of its heap back to the system. Asked for again,
    it comes page by page, each by a fault that clears it. Whether that happens at every step is
    chance, for it depends on what else lies on the heap: with gradients of 5 MB, 500 to 1200
    faults were counted in each step, and next to none when the memory is kept. With an allocator
    other than glibc's nothing changes.

    Returns:
        False if it cannot be set, or the user has set it.
    """
    if any(name in environment for name in _MALLOC_SET):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # no glibc
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_BYTES) and mallopt(_TRIM_THRESHOLD, _KEPT_BYTES))
