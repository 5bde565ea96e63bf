"""Adding of a version: a checkpoint of a trial becomes the next version of a model.

A number is taken by making the version's folder; files are linked or copied into it, read again and
verified; then the event is written that makes it a version. What a kill leaves before that is no
version, and is removed by a later call of the same user.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from blake3 import blake3

from hpcdet.errors import HpcdetError, IntegrityError, NotFound, UsageError
from hpcdet.policy.codes import PolicyRefused
from hpcdet.read.experiment import series
from hpcdet.read.experiment.gather import gather
from hpcdet.read.exports import checkpoint_process
from hpcdet.read.governed.attested_trials import AttestedTrial, GovernedExperiment
from hpcdet.registry import (
    model_events,
    model_names,
    registered_models,
    registry_place,
    version_files,
)
from hpcdet.registry.model_events import ModelEvent
from hpcdet.registry.registered_models import (
    RegisteredModel,
    Version,
    VersionRecord,
    folder_of,
    governance_of,
)
from hpcdet.registry.registry_place import Sharing, reachable
from hpcdet.registry.semantic_versions import SemanticVersion
from hpcdet.registry.version_files import VersionFolder
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.names import CONFIG, REGISTERED
from hpcdet.store.folder.records import Trial
from hpcdet.store.fs import files, sealed_json
from hpcdet.store.trials import manifests

ABANDONED_S = 24 * 3600.0
"""Age at which the folder of a version that was never completed is removed."""
_CODE = re.compile(r"code/.+")


@dataclass(frozen=True)
class CheckpointSource:
    """A checkpoint of a trial, to be registered.

    Attributes:
        paths: of its experiment, or of the registered version that it lies in.
        folder: of the checkpoint.
    """

    paths: ExperimentPaths
    trial: int
    folder: Path


def add(
    registry: Path,
    model: str,
    source: CheckpointSource,
    semantic: str = "",
    content: Callable[[Path], str] | None = None,
) -> Version:
    """Add a version to a model, which is made if there is none of the name.

    Args:
        registry: the registry's folder.
        semantic: semantic version, which no other version of the model may have.
        content: verifies every byte of a checkpoint and returns its content digest; None: a process
            of its own does (``checkpoint_process``).

    Raises:
        UsageError: a name or version cannot be given, is taken, or the model is archived.
        NotFound: the checkpoint has gone.
        IntegrityError: it is damaged, or not what its ledgers say.
        PolicyRefused: P18: it is of the control of an ablation.
        ConfigError: everybody may write into the registry, or the experiment's config is wrong.
        Unavailable: the registry cannot be written.
    """
    model_names.model_name(model)
    named = SemanticVersion.parse(semantic) if semantic else None
    content = content or checkpoint_process.content_digest
    with reachable(registry):
        sharing = Sharing.of(registry)
        folder = registry_place.make_model(registry, model, sharing)
        state = registered_models.fold(folder, model_events.read(folder))
        _refuse(state, named)
        _sweep(state)
        number = _take_number(state, sharing)
        root = folder_of(folder, number)
        try:
            record = _fill(VersionFolder(root, sharing), source, model, number, semantic, content)
            data = record.encode()
            files.write_once(root / REGISTERED, data, sharing.files)
            root.chmod(sharing.folders | (root.stat().st_mode & stat.S_ISGID))
            event = ModelEvent(0, "add", number, semantic=semantic, record=blake3(data).hexdigest())

            def decide(state: RegisteredModel) -> ModelEvent:
                _refuse(state, named)
                return event

            after = model_events.append(
                folder, sharing.files, lambda events: registered_models.fold(folder, events), decide
            )
        except BaseException:
            if not _is_version(folder, number):
                version_files.remove(root)
            raise
    return Version(after, after.versions[number])


def _is_version(folder: Path, number: int) -> bool:
    """True unless it is certain that no event has made a version of the number."""
    with contextlib.suppress(HpcdetError, OSError):
        return any(one.version == number for one in model_events.read(folder))
    return True


def _refuse(state: RegisteredModel, named: SemanticVersion | None) -> None:
    if state.archived:
        hint = f"hpcdet registry archive {state.name} --undo"
        raise UsageError("the model is archived", where=f"model:{state.name}", hint=hint)
    if named is None:
        return
    # also of those that were removed: who knows a version by it must not get another one
    has = next((one for one in state.versions.values() if one.semantic == named), None)
    if has is not None:
        what = f"version {has.number} has it: {has.semantic.text if has.semantic else ''}"
        hint = "semantic versions are unique: hpcdet registry versions shows them"
        raise UsageError(what, where=f"model:{state.name}@{named.text}", hint=hint)


def _take_number(state: RegisteredModel, sharing: Sharing) -> int:
    """Make the folder of the next version; returns its number."""
    versions = state.folder / "versions"
    taken = [int(name) for name in os.listdir(versions) if name.isdecimal()]
    number = max([0, *state.versions, *taken]) + 1
    while True:
        try:
            sharing.make(versions / str(number), files.FOLDER_MODE)
        except FileExistsError:
            number += 1
            continue
        return number


def _sweep(state: RegisteredModel) -> None:
    """Remove this user's folders of removed versions, and of those that a kill left long ago."""
    versions = state.folder / "versions"
    for name in os.listdir(versions):
        known = state.versions.get(int(name)) if name.isdecimal() else None
        with contextlib.suppress(OSError):
            status = (versions / name).lstat()
            old = time.time() - status.st_mtime > ABANDONED_S
            if status.st_uid == os.getuid() and (known.removed if known else old):
                version_files.remove(versions / name)


def _fill(
    made: VersionFolder,
    source: CheckpointSource,
    model: str,
    number: int,
    semantic: str,
    content: Callable[[Path], str],
) -> VersionRecord:
    """Fill the folder of a new version; returns its record."""
    paths, trial = source.paths, source.paths.trial(source.trial)
    target = ExperimentPaths(made.root).trial(source.trial).checkpoints / source.folder.name
    governance = _governance(source)
    try:
        manifest = manifests.read(source.folder)
        made.checkpoint(source.folder, target)
        made.capsule(paths)
        made.evidence(paths, trial)
    except FileNotFoundError as error:
        hint = "hpcdet ckpt ls shows those that are there"
        what = "the checkpoint has just been removed"
        raise NotFound(what, where=str(error.filename or source.folder), hint=hint) from error
    if (digest := content(target)) != manifest["digest"]:
        raise IntegrityError("its content is not what was saved", where=str(source.folder))
    before = _registered(paths)
    told = {} if before else _of_experiment(source, target.name)
    record = VersionRecord(
        model,
        number,
        paths.id,
        source.trial,
        int(target.name.partition(".")[0]),
        target.name,
        digest,
        manifest[sealed_json.ROOT],
        sum(shard["bytes"] for shard in manifest["shards"]),
        "",
        semantic,
        str(paths.root.resolve()),
        governance=governance,
        capsule=_capsule(paths, made.digests),
        **told,
    )
    if before is not None:  # of which no journal tells any more
        kept = ("model", "version", "semantic", "files", "governance", "capsule")
        record = replace(before, **{name: getattr(record, name) for name in kept})
    return replace(record, files=made.finish())


def _registered(paths: ExperimentPaths) -> VersionRecord | None:
    """Return the record of the version that the files are of; None for those of an experiment."""
    return VersionRecord.read(paths.root / REGISTERED)


def _of_experiment(source: CheckpointSource, checkpoint: str) -> dict[str, Any]:
    """Return what an experiment records of a checkpoint beside its files."""
    gathered = gather(source.paths)
    config = gathered.config
    step = int(checkpoint.partition(".")[0])
    trial = next(one for one in gathered.trials if one.number == source.trial)
    rows = [
        row
        for row in series.of_trial(trial)
        if row["group"] == "validation" and row["step"] <= step and not row["superseded"]
    ]
    values = {row["name"]: row["value"] for row in series.last(rows)}
    record = trial.record or Trial(source.trial, {}, 0)
    return {
        "description": config.description,
        "metric": config.searcher.metric,
        "smaller_is_better": config.searcher.smaller_is_better,
        "metrics": {
            name: one for name, one in values.items() if isinstance(one, int | float | str)
        },
        "hyperparameters": record.params,
        "seed": record.seed,
        "parent": config.searcher.begin_from or record.parent,
    }


def _capsule(paths: ExperimentPaths, digests: Mapping[str, list[int | str]]) -> dict[str, Any]:
    """Return what is needed to train a model again, and digests of it."""
    said = files.read_json(paths.provenance)
    provenance = said if isinstance(said, dict) else {}
    git = provenance.get("git")
    commit = git if isinstance(git, dict) else {}
    code = {name: of[1] for name, of in sorted(digests.items()) if _CODE.fullmatch(name)}
    found = {
        "config": digests[CONFIG][1],
        "provenance": digests.get(paths.provenance.name, [0, ""])[1],
        "code": blake3(files.canonical(code)).hexdigest(),
        "commit": commit.get("commit", ""),
        "remote": commit.get("remote", ""),
        "dirty": bool(commit.get("dirty")),
    }
    known = ("hpcdet", "python", "platform", "user", "created_at")
    return {**found, **{name: provenance[name] for name in known if name in provenance}}


def _governance(source: CheckpointSource) -> dict[str, Any]:
    """Return what the policy has recorded of a checkpoint, verified beside its ledgers.

    ``doubt`` says why it could not be verified; "" if it was.
    """
    experiment = GovernedExperiment(source.paths)
    if experiment.history is not None and experiment.history.newest.ablates:
        raise PolicyRefused(
            "P18",
            "it is of the control of an ablation, whose layers every source has changed",
            where=source.paths.id,
            hint=f"register a checkpoint of {experiment.history.newest.ablates}",
        )
    doubt = AttestedTrial(experiment, source.paths.trial(source.trial)).check(source.folder)
    block = manifests.read(source.folder)["meta"].get("governance")
    return {**governance_of(block), "doubt": doubt} if block else {}


def source_of(paths: ExperimentPaths, trial: int, folder: Path) -> CheckpointSource:
    """Return a checkpoint to be registered.

    Raises:
        NotFound: the folder is not a checkpoint of a trial.
    """
    if not trial:
        raise NotFound("the folder is not a checkpoint of an experiment", where=str(folder))
    return CheckpointSource(paths, trial, folder)
