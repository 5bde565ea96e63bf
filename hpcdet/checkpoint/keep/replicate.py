"""Copies on project storage of what the policy keeps, where checkpoints are saved on scratch.

Scratch is purged; what the policy keeps must outlive that. A copy is made beside the training
that goes on: into a folder with a temporary name, synced, read again byte for byte, and only then
given its name. A kill at any point leaves the copies that were there, whole, and a folder with a
temporary name for the next attempt to take away.

``link`` is the other way to a second checkpoint of the same content: another trial's, taken over.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdet.checkpoint.format import manifest as manifests
from hpcdet.checkpoint.format import remove
from hpcdet.checkpoint.format.manifest import Manifest
from hpcdet.checkpoint.keep.retention import Key, RetentionRules, ended, existing, keep, pinned
from hpcdet.checkpoint.read import load
from hpcdet.errors import IntegrityError, UsageError
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files
from hpcdet.store.trials import hard_links
from hpcdet.store.trials.standing import MANIFEST

_PIECE = 4 << 20
PARTIAL = ".partial-"
"""Begins the name of the folder of a copy that is being made; the attempt ends it."""


class ReplicationStopped(Exception):
    """There is no time left to finish a copy; a later attempt makes it."""


@dataclass(frozen=True)
class Secured:
    """The result of one round.

    Attributes:
        copied: names of the checkpoints that now have a copy.
        failed: name and reason of each that could not be copied.
    """

    copied: tuple[str, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()


def secure(
    experiment: ExperimentPaths,
    policy: RetentionRules,
    trial: int,
    attempt: int,
    protected: Collection[Key] = (),
    stop: Callable[[], bool] = lambda: False,
) -> Secured:
    """Copy what the policy keeps of a trial to project storage, and remove there what it does not.

    Nothing goes while something that is to be kept has no copy yet. Called by the one process
    that writes this trial's checkpoints, one call at a time; it may save and sweep meanwhile.

    Args:
        attempt: the caller's; unfinished copies of it and of those before are taken away.
        stop: asked all the time; once it is True, the copy that is being made is given up.
    """
    paths = experiment.trial(trial)
    kept = paths.kept
    if kept is None:
        return Secured()
    clear(kept, attempt)
    remove.leftovers(kept, attempt)
    others = ended(experiment) if policy.experiment_best else []
    trials = [paths, *(experiment.trial(number) for number in others if number != trial)]
    candidates = existing(experiment, policy, trials)
    wanted = keep(candidates, policy, 0, {*protected, *pinned(trials)})
    copied: list[str] = []
    failed: list[tuple[str, str]] = []
    for name in sorted((n for t, n in wanted if t == trial), key=manifests.position, reverse=True):
        source, target = paths.checkpoints / name, kept / name
        if manifests.is_committed(target) or not manifests.is_committed(source):
            continue
        try:
            copy(source, target, kept / f"{PARTIAL}{name}-{attempt}", stop)
            copied.append(name)
        except ReplicationStopped:
            return Secured(tuple(copied), tuple(failed))
        except (OSError, IntegrityError) as error:
            aside = source.with_name(f"{remove.BAD}{name}")
            if manifests.is_committed(source) or aside.exists():  # else it was swept meanwhile
                failed.append((name, say(error)))
    for number in {trial, *others}:
        _sweep(experiment, number, [c.key for c in candidates], wanted)
    return Secured(tuple(copied), tuple(failed))


def copy(
    source: Path, target: Path, partial: Path, stop: Callable[[], bool] = lambda: False
) -> None:
    """Copy a checkpoint; ``target`` has its name only once all of it is durable and verified.

    Args:
        partial: a folder beside ``target`` that nobody else uses; gone when this returns.

    Raises:
        IntegrityError: what was read again is not what was saved. If the source itself is
            damaged, it is set aside.
        OSError: a disk is full or failed, or the source has been removed meanwhile.
        ReplicationStopped: ``stop`` returned True.
    """
    try:
        shutil.rmtree(partial, ignore_errors=True)
        files.make_folder(partial)
        manifest = manifests.read(source)
        for name in (*(shard.file for shard in manifest.shards), MANIFEST):
            _copy_file(source / name, partial / name, stop)
        files.sync_folder(partial)
        load.verify(partial)
        if stop():
            raise ReplicationStopped
        partial.rename(target)
        files.sync_folder(target.parent)
    except (IntegrityError, FileNotFoundError):
        _examine(source)
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _copy_file(source: Path, target: Path, stop: Callable[[], bool]) -> None:
    with contextlib.ExitStack() as stack:
        read = os.open(source, os.O_RDONLY)
        stack.callback(os.close, read)
        write = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, files.FILE_MODE)
        stack.callback(os.close, write)
        while data := os.read(read, _PIECE):
            if stop():
                raise ReplicationStopped
            files.write_all(write, data)
        os.fsync(write)
        # so that it is verified as the disk has it, not as it still is in memory
        os.posix_fadvise(write, 0, 0, os.POSIX_FADV_DONTNEED)


def _examine(source: Path) -> None:
    """Set the source of a bad copy aside if it is what is bad."""
    try:
        load.verify(source)
    except manifests.NewerFormat:
        return
    except IntegrityError:
        if manifests.is_committed(source):
            remove.set_aside(source)


def clear(checkpoints: Path, attempt: int) -> None:
    """Take away the copies that earlier rounds, of this attempt or before, left unfinished."""
    with contextlib.suppress(FileNotFoundError):
        for entry in os.listdir(checkpoints):
            owner = entry.rpartition("-")[2]
            if entry.startswith(PARTIAL) and owner.isdigit() and int(owner) <= attempt:
                shutil.rmtree(checkpoints / entry, ignore_errors=True)


def _sweep(
    experiment: ExperimentPaths, trial: int, known: Collection[Key], wanted: Collection[Key]
) -> None:
    kept = experiment.trial(trial).kept
    if kept is None:
        return
    if any(t == trial and not manifests.is_committed(kept / name) for t, name in wanted):
        return
    for number, name in known:
        if number == trial and (number, name) not in wanted:
            remove.folder(kept / name)


def say(error: Exception) -> str:
    """Describe what went wrong with a copy."""
    if isinstance(error, OSError):
        return f"{error.strerror or error} ({error.filename})" if error.filename else str(error)
    return str(error)


def link(
    source: Path, target: Path, *, meta: Mapping[str, Any] | None = None, previous: str = ""
) -> Manifest:
    """Make ``target`` a checkpoint of the same content (``store.trials.hard_links.link``).

    Args:
        source: a checkpoint; every byte of it is checked.
        target: ``TrialPaths.checkpoint(step, attempt)`` of the same step.
        meta: what is remembered beside what ``source`` does.
        previous: root of the checkpoint before ``target``.

    Raises:
        IntegrityError: the source is damaged.
        UsageError: there is a checkpoint already, or its name says another step.
        OSError: the disk is full or fails; nothing is left behind.
    """
    if manifests.is_committed(target):
        raise UsageError("a checkpoint of this name exists", where=str(target))
    origin = load.verify(source)
    if manifests.position(target.name)[0] != origin.step:
        raise UsageError(f"it is not of the step of {origin.name}", where=str(target))
    hard_links.link(source, target, meta=meta, previous=previous)
    return manifests.read(target)
