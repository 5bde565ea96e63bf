"""Registered versions beside experiments and trials: compared, and reached by sources of data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpcdet.errors import HpcdetError, NotFound
from hpcdet.read.comparison import side_by_side
from hpcdet.read.comparison.facts import Facts, collect, flat
from hpcdet.read.comparison.side_by_side import ComparedView
from hpcdet.read.lookup.find import Reference
from hpcdet.read.lookup.impact import Impact, ImpactView
from hpcdet.registry import model_names, registered_models
from hpcdet.registry.registered_models import Version


def compare(
    ids: Sequence[str],
    find: Callable[[str], Reference],
    registry: Callable[[], Path],
    facts_of: Callable[[Reference], Facts] = collect,
) -> tuple[list[ComparedView], list[str]]:
    """Return experiments, trials and versions (``model:NAME:3``) side by side, and warnings.

    Args:
        find: returns the experiment or trial of an id.
        registry: returns the registry's folder; asked only where a version is named.
        facts_of: returns the facts of an experiment or trial.

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
            sides.setdefault(found, facts_of(found))
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


def with_versions(
    registry: Path, source: str, of_trials: Callable[[frozenset[str]], Impact]
) -> Impact:
    """Return what a source has reached, registered versions included.

    Versions stand beside the trial that they are of; one whose experiment is gone has a row of its
    own.

    Args:
        of_trials: returns the trials reached, given the sources that versions know.

    Raises:
        NotFound: no policy, checkpoint or version knows the source.
    """
    versions, warnings = _governed(registry)
    known = frozenset(str(name) for one in versions for name in one.record.governance["sources"])
    found = of_trials(known)
    rows = {(row.experiment, row.trial): row for row in found.items}
    for version in versions:
        layers = _layers(version.record.governance, source)
        if not layers:
            continue
        key = (version.record.experiment, version.record.trial)
        row = rows.get(key) or ImpactView(*key, "", [], "", [], [], False, [])
        if not row.checkpoint:
            path = str(version.checkpoint)
            row = replace(row, checkpoint=path, layers=layers, checkpoints=[path])
        rows[key] = replace(row, versions=[*row.versions, version.name])
    return Impact(list(rows.values()), [*found.warnings, *warnings])


def _governed(registry: Path) -> tuple[list[Version], list[str]]:
    """Return the versions with a policy, and a warning for each that cannot be read."""
    found: list[Version] = []
    warnings: list[str] = []
    for name in registered_models.names(registry):
        try:
            model = registered_models.model(registry, name)
            every = registered_models.versions(model)
            found += [one for one in every if one.record.governance.get("sources")]
        except NotFound:
            continue
        except (HpcdetError, OSError) as error:
            warnings.append(f"model:{name} is left out: {error}".partition("\n")[0])
    return found, warnings


def _layers(said: Mapping[str, Any], source: str) -> list[str]:
    """Return the layers that were exposed to a source."""
    if source not in said["sources"]:
        return []
    row = said["exposure"][said["sources"].index(source)]
    return [str(layer) for layer, units in zip(said["layers"], row, strict=False) if units > 0]
