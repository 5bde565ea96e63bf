"""Verification of versions: every byte by its digest, and what governed ones say of themselves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hpcdet.errors import HpcdetError, IntegrityError, NotFound
from hpcdet.registry import registered_models, version_files
from hpcdet.registry.registered_models import Version, folder_of, governance_of
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import sealed_json
from hpcdet.store.trials import manifests


@dataclass(frozen=True)
class VersionCheckView:
    """The state of a version's files."""

    model: str
    """The model's name."""
    version: int
    """The version's number; 0: the events of the model."""
    state: Literal["valid", "damaged"]
    """``damaged``: a byte, a digest, or what the policy has recorded is not as written."""
    errors: list[str]
    """What is wrong, each as `FILE: WHAT`."""
    governed: Literal["", "verified", "doubtful"]
    """``verified``: policy digest, exposure and ledger head are those of the ledgers beside it.
    ``doubtful``: they could not be verified when it was added. "": it has no policy."""
    digest: str
    """Digest of the training state; "" if it could not be read."""
    bytes: int
    """Size of the checkpoint's files; 0 if it could not be read."""
    path: str
    """The version's folder."""


def check(version: Version) -> VersionCheckView:
    """Verify every byte of a version, and what it records of its policy."""
    folder = folder_of(version.model.folder, version.number)
    errors: list[str] = []
    governed: Literal["", "verified", "doubtful"] = ""
    digest, size = "", 0
    try:
        record = version.record
        digest, size = record.digest, record.bytes
        errors += version_files.problems(folder, record.files)
        errors += _content(version)
        if record.governance and not errors:
            errors += _governed(version, folder)
            governed = "doubtful" if record.governance.get("doubt") else "verified"
        elif record.governance:
            governed = "doubtful"
    except (HpcdetError, OSError) as error:
        errors.append(_said(folder, error))
    return VersionCheckView(
        version.model.name,
        version.number,
        "damaged" if errors else "valid",
        errors,
        "doubtful" if errors and governed else governed,
        digest,
        size,
        str(folder),
    )


def all_of(registry: Path, name: str) -> Iterator[VersionCheckView]:
    """Verify each version of a model that was not removed."""
    for version in registered_models.versions(registered_models.model(registry, name)):
        yield check(version)


def everything(registry: Path) -> Iterator[VersionCheckView]:
    """Verify each version of each model; one with damaged events is a row with version 0."""
    for name in registered_models.names(registry):
        folder = registry / name
        try:
            yield from all_of(registry, name)
        except NotFound:
            continue  # all of its versions were removed, or none was completed
        except IntegrityError as error:
            errors = [_said(folder, error)]
            yield VersionCheckView(name, 0, "damaged", errors, "", "", 0, str(folder))


def _content(version: Version) -> Iterator[str]:
    """Yield a line if the manifest is not that of the record."""
    record = version.record
    manifest = manifests.read(version.checkpoint)
    if (manifest["digest"], manifest[sealed_json.ROOT]) != (record.digest, record.root):
        yield f"{record.checkpoint}: it is another checkpoint than was added"


def _governed(version: Version, folder: Path) -> Iterator[str]:
    """Yield each difference between record, manifest and ledgers."""
    from hpcdet.read.governed.attested_trials import AttestedTrial, GovernedExperiment

    record, paths = version.record, ExperimentPaths(folder)
    said = governance_of(manifests.read(version.checkpoint)["meta"].get("governance") or {})
    for name in sorted(said.keys() | record.governance.keys() - {"doubt"}):
        if said.get(name) != record.governance.get(name):
            yield f"{record.checkpoint}: {name} is not what was recorded when it was added"
    try:
        experiment = GovernedExperiment(paths)
        AttestedTrial(experiment, paths.trial(record.trial)).check(version.checkpoint)
    except IntegrityError as error:
        yield _said(folder, error)


def _said(folder: Path, error: HpcdetError | OSError) -> str:
    what = error.what if isinstance(error, HpcdetError) else error.strerror or str(error)
    where = error.where if isinstance(error, HpcdetError) else str(error.filename or "")
    return f"{where.removeprefix(f'{folder}/')}: {what}"
