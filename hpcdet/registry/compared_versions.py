"""Registered versions beside experiments and trials, by what their records and files say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from hpcdet.read.comparison import side_by_side
from hpcdet.read.comparison.facts import Facts, collect, flat
from hpcdet.read.comparison.side_by_side import ComparedView
from hpcdet.read.lookup.find import Reference
from hpcdet.registry import model_names, registered_models
from hpcdet.registry.registered_models import Version


def compare(
    ids: Sequence[str], find: Callable[[str], Reference], registry: Callable[[], Path]
) -> tuple[list[ComparedView], list[str]]:
    """Return experiments, trials and versions (``model:NAME:3``) side by side, and warnings.

    Args:
        find: returns the experiment or trial of an id.
        registry: returns the registry's folder; asked only where a version is named.

    Raises:
        UsageError: they are not at least two different ones, or one is no name of a version.
        NotFound, IntegrityError, Unavailable: as ``find`` and ``registered_models.version``.
    """
    sides: dict[object, Facts] = {}
    for id in ids:
        if model_names.is_reference(id):
            version = registered_models.version(registry(), id)
            sides.setdefault(version.name, facts(version))
        else:
            found = replace(find(id), attempt=0)
            sides.setdefault(found, collect(found))
    return side_by_side.table(list(sides.values()))


def facts(version: Version) -> Facts:
    """Return the facts of a version; its metrics are those of its checkpoint."""
    record = version.record
    found = collect(Reference(version.paths, record.trial), version.name)
    first = (
        {record.metric: record.metrics[record.metric]} if record.metric in record.metrics else {}
    )
    metrics = {**first, **record.metrics, "steps": record.step}
    of = {**found.of, "metric": metrics, "hyperparameters": flat(record.hyperparameters)}
    return replace(found, of=of)
