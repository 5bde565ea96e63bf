"""Registered versions that a source of data has reached, beside the trials that it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpcdet.errors import HpcdetError, NotFound
from hpcdet.read.lookup.impact import Impact, ImpactView
from hpcdet.registry import registered_models
from hpcdet.registry.registered_models import Version


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
