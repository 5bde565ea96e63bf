"""Taking another trial's checkpoint as one's own, every byte of it checked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcdet.checkpoint.format import manifest as manifests
from hpcdet.checkpoint.format.manifest import Manifest
from hpcdet.checkpoint.read import load
from hpcdet.errors import UsageError
from hpcdet.store.trials import hard_links


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
