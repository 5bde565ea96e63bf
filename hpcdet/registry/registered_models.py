"""Registered models: their versions, aliases, labels and notes, by the events of each."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from blake3 import blake3

from hpcdet.errors import IntegrityError, NotFound
from hpcdet.registry import model_events, model_names
from hpcdet.registry.model_events import ModelEvent
from hpcdet.registry.model_names import LATEST, ModelReference
from hpcdet.registry.registry_place import reachable
from hpcdet.registry.semantic_versions import SemanticVersion
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.names import REGISTERED
from hpcdet.store.fs import files, sealed_json
from hpcdet.store.fs.json_record import JsonRecord
from hpcdet.store.trials import manifests

_BACKUP = "put the version back from a backup"
_GOVERNED = (
    *("policy_digest", "assurance", "sources", "layers", "exposure", "rows", "dropped"),
    *("complete", "ledger", "root", "chains"),
)


@dataclass(frozen=True)
class Note:
    """A note on a version, or on its model."""

    text: str
    """The text."""
    at: str
    """When it was written."""
    by: str
    """Who wrote it."""
    version: int
    """The version; 0: the whole model."""


@dataclass(frozen=True)
class VersionRecord(JsonRecord):
    """``version.json``: what a version is, as of the moment it was added; write-once.

    Attributes:
        semantic: its semantic version; "" without one.
        experiment: id of the experiment it was trained in, ``source``: that one's folder then.
        checkpoint: name of the checkpoint's folder. ``root``: of its manifest, ``digest``: of its
            training state.
        bytes: size of the checkpoint's files.
        metric: the searcher's; ``smaller_is_better``: how its values are ordered.
        metrics: last value of each validation metric at or before the checkpoint.
        parent: what its trial began from, as the config has it; "" from nothing.
        capsule: what is needed to train it again, and digests of it.
        governance: what the policy has recorded of it; empty without a policy.
        files: BLAKE3 of ``files.json``, which has the digest of each file.
    """

    model: str
    version: int
    experiment: str
    trial: int
    step: int
    checkpoint: str
    digest: str
    root: str
    bytes: int
    files: str
    semantic: str = ""
    source: str = ""
    description: str = ""
    metric: str = ""
    smaller_is_better: bool = True
    metrics: dict[str, Any] = field(default_factory=dict)
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    parent: str = ""
    capsule: dict[str, Any] = field(default_factory=dict)
    governance: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class VersionStanding:
    """A version by its model's events.

    Attributes:
        record: BLAKE3 of its record's file.
        at, by: when and by whom it was added.
    """

    number: int
    record: str
    at: str
    by: str
    semantic: SemanticVersion | None = None
    labels: tuple[str, ...] = ()
    archived: bool = False
    removed: bool = False


@dataclass(frozen=True)
class RegisteredModel:
    """A model by its events.

    Attributes:
        folder: of the model.
        versions: all that were ever added, by number, those that were removed among them.
        aliases: number of the version of each.
        labels: of the model as a whole.
    """

    folder: Path
    events: tuple[ModelEvent, ...] = ()
    versions: Mapping[int, VersionStanding] = field(default_factory=dict)
    aliases: Mapping[str, int] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    archived: bool = False

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def there(self) -> list[VersionStanding]:
        """The versions that were not removed, in order."""
        return [one for _, one in sorted(self.versions.items()) if not one.removed]

    def aliases_of(self, number: int) -> list[str]:
        """Return the aliases of a version."""
        return sorted(name for name, of in self.aliases.items() if of == number)

    def find(self, reference: ModelReference) -> VersionStanding:
        """Return the version that a reference names.

        Raises:
            NotFound: there is none, or it was removed.
        """
        current = [one for one in self.there if not one.archived]
        if reference.number:
            found = self.versions.get(reference.number)
            if found is None or found.removed:
                what = "it was removed" if found else f"no version {reference.number}"
                raise NotFound(what, where=str(reference), hint=self._known())
            return found
        if reference.whole or reference.at == LATEST:
            if not current:
                raise NotFound("no version is there", where=str(reference), hint=self._known())
            return current[-1]
        wanted = reference.range
        if wanted is None:
            number = self.aliases.get(reference.at)
            if number is None:
                raise NotFound(f"no alias {reference.at}", where=str(reference), hint=self._known())
            return self.versions[number]
        fit = [(one.semantic, one) for one in current if one.semantic and one.semantic in wanted]
        if not fit:
            what = f"no version fits {reference.at}"
            raise NotFound(what, where=str(reference), hint=self._known())
        return max(fit, key=lambda pair: pair[0])[1]

    def _known(self) -> str:
        return f"hpcdet registry versions {self.name} shows those it has"


def fold(folder: Path, events: Iterable[ModelEvent]) -> RegisteredModel:
    """Return a model by its events."""
    model = RegisteredModel(folder)
    for event in events:
        model = replace(_after(model, event), events=(*model.events, event))
    return model


def _after(model: RegisteredModel, event: ModelEvent) -> RegisteredModel:
    of, number = model.versions.get(event.version), event.version
    match event.kind:
        case "add":
            named = SemanticVersion.parse(event.semantic) if event.semantic else None
            made = VersionStanding(number, event.record, event.at, event.author, named)
            return replace(model, versions={**model.versions, number: made})
        case "alias":
            return replace(model, aliases={**model.aliases, event.alias: number})
        case "unalias":
            left = {name: one for name, one in model.aliases.items() if name != event.alias}
            return replace(model, aliases=left)
        case "note":
            note = Note(event.text, event.at, event.author, number)
            return replace(model, notes=(*model.notes, note))
        case "label":
            had = of.labels if of else model.labels
            kept = [one for one in had if one not in event.rm]
            labels = tuple(dict.fromkeys([*kept, *event.add]))
            return _changed(model, of, labels=labels)
        case "archive" | "restore":
            return _changed(model, of, archived=event.kind == "archive")
        case "remove":
            if of is not None:
                return _changed(model, of, removed=True)
            gone = {n: replace(one, removed=True) for n, one in model.versions.items()}
            return replace(RegisteredModel(model.folder, model.events), versions=gone)
    return model  # of a newer hpcdet


def _changed(model: RegisteredModel, of: VersionStanding | None, **what: Any) -> RegisteredModel:
    if of is None:
        return replace(model, **what)
    return replace(model, versions={**model.versions, of.number: replace(of, **what)})


@dataclass(frozen=True)
class Version:
    """A version of a model, with its files."""

    model: RegisteredModel
    standing: VersionStanding

    @property
    def number(self) -> int:
        return self.standing.number

    @property
    def name(self) -> str:
        """The version as a reference, ``model:digits:3``."""
        return str(ModelReference(self.model.name, self.number))

    @property
    def paths(self) -> ExperimentPaths:
        """The folder of the version, laid out as that of an experiment with one trial."""
        return ExperimentPaths(folder_of(self.model.folder, self.number), self.record.experiment)

    @property
    def checkpoint(self) -> Path:
        """The folder of its checkpoint."""
        return self.paths.trial(self.record.trial).checkpoints / self.record.checkpoint

    def unchanged_checkpoint(self) -> Path:
        """Return the folder of its checkpoint.

        Raises:
            IntegrityError: it holds no checkpoint, or another one than was added.
        """
        if manifests.read(self.checkpoint)[sealed_json.ROOT] != self.record.root:
            hint = f"hpcdet registry verify {self.name}"
            what = "it is another checkpoint than was added"
            raise IntegrityError(what, where=str(self.checkpoint), hint=hint)
        return self.checkpoint

    @cached_property
    def record(self) -> VersionRecord:
        """Its record. Raises IntegrityError: it is not what was written."""
        path = folder_of(self.model.folder, self.number) / REGISTERED
        try:
            data = files.read(path)
        except (FileNotFoundError, NotADirectoryError):
            what = "the record of the version is missing"
            raise IntegrityError(what, where=str(path), hint=_BACKUP) from None
        value = files.parse_json(data, path)
        if blake3(data).hexdigest() != self.standing.record or not isinstance(value, dict):
            raise IntegrityError("it is not what was written", where=str(path), hint=_BACKUP)
        try:
            return VersionRecord.decode(value)
        except ValueError as error:
            raise IntegrityError(str(error), where=str(path), hint=_BACKUP) from error


def governance_of(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a version records of a manifest's block of governance."""
    return {name: block[name] for name in _GOVERNED if name in block}


def folder_of(model: Path, number: int) -> Path:
    """Return the folder of a version."""
    return model / "versions" / str(number)


def names(registry: Path) -> list[str]:
    """Return the names of the models in a registry; none if it is not there.

    Raises:
        Unavailable: it cannot be read.
    """
    with reachable(registry):
        try:
            with os.scandir(registry) as entries:
                there = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
        except (FileNotFoundError, NotADirectoryError):
            return []
    return sorted(entry.name for entry in there if model_names.is_model_name(entry.name))


def model(registry: Path, name: str) -> RegisteredModel:
    """Return a model.

    Raises:
        NotFound: there is none of that name.
        IntegrityError: its events are damaged.
        Unavailable: it cannot be read.
    """
    if model_names.is_model_name(name):  # else it may lead out of the registry
        folder = registry / name
        with reachable(folder):
            found = fold(folder, model_events.read(folder))
        if found.there:
            return found
    near = difflib.get_close_matches(name, names(registry), n=1)
    hint = f"did you mean {near[0]}? " if near and near[0] != name else ""
    hint += f"hpcdet registry ls shows the models in {registry}"
    raise NotFound("no such model", where=f"model:{name}", hint=hint)


def version(registry: Path, reference: ModelReference | str) -> Version:
    """Return the version that a reference names, its record checked.

    Raises:
        UsageError: the text is no reference.
        NotFound: there is no such model or version.
        IntegrityError: events or record are damaged.
        Unavailable: it cannot be read.
    """
    if isinstance(reference, str):
        reference = model_names.reference(reference)
    of = model(registry, reference.name)
    found = Version(of, of.find(reference))
    with reachable(of.folder):
        _ = found.record
    return found


def numbered(registry: Path, reference: ModelReference) -> ModelReference:
    """Return a reference that names the same version by its number; one of a model as it is.

    Raises:
        NotFound, IntegrityError, Unavailable: as ``version``.
    """
    of = model(registry, reference.name)
    return (
        reference
        if reference.whole
        else replace(reference, number=of.find(reference).number, at="")
    )


def versions(of: RegisteredModel) -> Iterator[Version]:
    """Yield the versions of a model that were not removed, in order."""
    for standing in of.there:
        yield Version(of, standing)


def of_path(path: Path) -> Path | None:
    """Return the folder of the registered version that a path lies in; None if it lies in none."""
    for folder in (path, *path.parents):
        # others may have files of this name, too
        model = folder.parent.parent
        if (folder / REGISTERED).is_file() and folder_of(model, 0).parent == folder.parent:
            return folder if model_events.folder(model).is_dir() else None
    return None
