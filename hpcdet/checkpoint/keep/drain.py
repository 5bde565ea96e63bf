"""From the disk of a node to scratch: checkpoints that were committed there are copied.

Only whole checkpoints are copied, and a copy has its name only once it is durable and verified
(``safekeeping.copy``): whatever is killed when, there is the one on the node, and on scratch that
one or an older one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hpcdet.checkpoint.format import manifest as manifests
from hpcdet.checkpoint.format import remove
from hpcdet.checkpoint.format.manifest import Manifest
from hpcdet.checkpoint.keep import replicate
from hpcdet.checkpoint.keep.replicate import ReplicationStopped
from hpcdet.errors import IntegrityError
from hpcdet.store.folder.layout import TrialPaths
from hpcdet.store.fs import journal
from hpcdet.store.trials import staged
from hpcdet.store.trials.standing import lineage

KEEP = 2
"""So many of the newest stay on the node, to go on from there: one may be damaged."""


@dataclass(frozen=True)
class Drained:
    """The result of one round.

    Attributes:
        copied: what is on scratch now.
        failed: name and reason of each that could not be copied.
    """

    copied: tuple[Manifest, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()


def drain(
    place: Path, trial: TrialPaths, attempt: int, stop: Callable[[], bool] = lambda: False
) -> Drained:
    """Copy what waits on this node to where checkpoints are saved; one call at a time.

    What was committed meanwhile is copied, too. Then all but the newest leave the node.

    Args:
        attempt: the caller's; unfinished copies of it and of those before are taken away.
        stop: asked all the time; once it says so, the copy that is being made is given up.
    """
    copied: list[Manifest] = []
    failed: dict[str, str] = {}
    replicate.clear(trial.checkpoints, attempt)
    with contextlib.suppress(ReplicationStopped):
        while left := [name for name in staged.waiting(place, trial) if name not in failed]:
            name = left[0]
            try:
                copied.append(_copy(place / name, trial.checkpoints, attempt, stop))
                (place / name / staged.COPIED).touch()
            except (OSError, IntegrityError) as error:
                failed[name] = replicate.say(error)
    _sweep(place, trial)
    return Drained(tuple(copied), tuple(failed.items()))


def _copy(source: Path, checkpoints: Path, attempt: int, stop: Callable[[], bool]) -> Manifest:
    target = checkpoints / source.name
    if target.exists():  # a save that was cut off, or what a purge has left
        remove.folder(target)
    manifest = manifests.read(source)
    partial = checkpoints / f"{replicate.PARTIAL}{source.name}-{attempt}"
    replicate.copy(source, target, partial, stop)
    return manifest


def note(path: Path, manifest: Manifest) -> None:
    """Say in the journal of an attempt that has ended that a checkpoint of it is on scratch."""
    lines = journal.read(path)
    kind, name = staged.STAGED, manifest.name
    told = [line for line in lines if line["kind"] == kind and line["name"] == name]
    with journal.Writer(path) as writer:
        found = staged.record(told[-1]) if told else manifest.record()
        writer.append("checkpoint", sync=True, **found)


def _sweep(place: Path, trial: TrialPaths) -> None:
    """Take from the node what has no more use there."""
    there = [name for name in manifests.names(place) if manifests.is_committed(place / name)]
    line = lineage(trial)
    newest = [name for name in there if name in line][-KEEP:]
    wanted = {*newest, *staged.waiting(place, trial)}
    for name in there:
        if name not in wanted:
            remove.folder(place / name)
