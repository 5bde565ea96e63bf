"""Changes of models: aliases, labels, notes, archiving and removal, each one event."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from hpcdet.errors import UsageError
from hpcdet.registry import model_events, model_names, registered_models, version_files
from hpcdet.registry.model_events import ModelEvent
from hpcdet.registry.model_names import ModelReference
from hpcdet.registry.registered_models import RegisteredModel, VersionStanding, folder_of
from hpcdet.registry.registry_place import Sharing, reachable
from hpcdet.store.folder import trust

_LONGEST = 10_000
Decision = Callable[[RegisteredModel], ModelEvent | None]


def set_alias(registry: Path, reference: ModelReference, alias: str) -> RegisteredModel:
    """Give a version an alias, which another version of the model loses.

    Raises:
        UsageError: it is no alias, no version is named, or the version is archived.
        NotFound, IntegrityError, Unavailable: as ``registered_models.model``.
    """
    model_names.alias(alias)
    if reference.whole:
        hint = f"{reference}:3 @{alias}, or {reference}@latest"
        raise UsageError("name the version that gets the alias", where=str(reference), hint=hint)

    def decide(model: RegisteredModel) -> ModelEvent | None:
        found = model.find(reference)
        if found.archived or model.archived:
            hint = f"hpcdet registry archive {_called(model, found)} --undo"
            raise UsageError("it is archived", where=str(reference), hint=hint)
        if model.aliases.get(alias) == found.number:
            return None
        return ModelEvent(0, "alias", found.number, alias=alias)

    return _change(registry, reference.name, decide)


def remove_alias(registry: Path, name: str, alias: str) -> RegisteredModel:
    """Take an alias away.

    Raises:
        NotFound: the model has none of the name.
    """

    def decide(model: RegisteredModel) -> ModelEvent:
        found = model.find(ModelReference(name, at=model_names.alias(alias)))
        return ModelEvent(0, "unalias", found.number, alias=alias)

    return _change(registry, name, decide)


def label(
    registry: Path, reference: ModelReference, add: Sequence[str] = (), rm: Sequence[str] = ()
) -> RegisteredModel:
    """Add and remove labels of a version, or of the model where no version is named."""
    for one in (*add, *rm):
        model_names.label(one)

    def decide(model: RegisteredModel) -> ModelEvent | None:
        found = _named(model, reference)
        has = found.labels if found else model.labels
        new = [one for one in dict.fromkeys(add) if one not in has]
        gone = [one for one in dict.fromkeys(rm) if one in has]
        if not new and not gone:
            return None
        return ModelEvent(0, "label", found.number if found else 0, add=new, rm=gone)

    return _change(registry, reference.name, decide)


def refuse_note(text: str, where: str) -> None:
    """Raise UsageError for a note that is empty, or longer than anybody reads."""
    if not text.strip() or len(text) > _LONGEST:
        what = "empty" if not text.strip() else f"over {_LONGEST} characters"
        raise UsageError(f"the note is {what}", where=where)


def note(registry: Path, reference: ModelReference, text: str) -> RegisteredModel:
    """Write a note on a version, or on the model where no version is named."""
    refuse_note(text, str(reference))

    def decide(model: RegisteredModel) -> ModelEvent:
        found = _named(model, reference)
        return ModelEvent(0, "note", found.number if found else 0, text=text)

    return _change(registry, reference.name, decide)


def archive(registry: Path, reference: ModelReference, undo: bool = False) -> RegisteredModel:
    """Hide a version, or the model where no version is named; ``undo``: show it again.

    Raises:
        UsageError: the version has an alias.
    """

    def decide(model: RegisteredModel) -> ModelEvent | None:
        found = _named(model, reference)
        if (found.archived if found else model.archived) != undo:
            return None
        if not undo:
            _refuse_aliased(model, [found] if found else model.there)
        return ModelEvent(0, "restore" if undo else "archive", found.number if found else 0)

    return _change(registry, reference.name, decide)


def remove(registry: Path, reference: ModelReference) -> RegisteredModel:
    """Remove a version, or all of a model where no version is named, with the files.

    Numbers and semantic versions are not used again.

    Raises:
        UsageError: a version has an alias, or belongs to another user.
    """
    doomed: list[int] = []

    def decide(model: RegisteredModel) -> ModelEvent:
        found = _named(model, reference)
        doomed[:] = [one.number for one in ([found] if found else model.there)]
        refuse_removal(model, doomed)
        return ModelEvent(0, "remove", found.number if found else 0)

    after = _change(registry, reference.name, decide)
    for number in doomed:
        version_files.remove(folder_of(after.folder, number))
    return after


def refuse_removal(model: RegisteredModel, numbers: Sequence[int]) -> None:
    """Refuse to remove versions that have an alias, or belong to another user.

    Raises:
        UsageError: with the first of them.
    """
    _refuse_aliased(model, [model.versions[number] for number in numbers])
    for number in numbers:
        folder = folder_of(model.folder, number)
        owner = folder.lstat().st_uid if folder.exists() else os.getuid()
        if os.getuid() not in (0, owner):
            raise UsageError(
                f"it belongs to {trust.user(owner)}, who alone removes it",
                where=f"model:{model.name}:{number}",
                hint=f"hide it: hpcdet registry archive {model.name}:{number}",
            )


def _refuse_aliased(model: RegisteredModel, versions: Sequence[VersionStanding]) -> None:
    for one in versions:
        if has := model.aliases_of(one.number):
            raise UsageError(
                f"it has the alias {has[0]}",
                where=f"model:{model.name}:{one.number}",
                hint=f"take it away first: hpcdet registry unalias {model.name}@{has[0]}",
            )


def _named(model: RegisteredModel, reference: ModelReference) -> VersionStanding | None:
    """Return the version that is named; None for the model as a whole."""
    return None if reference.whole else model.find(reference)


def _called(model: RegisteredModel, version: VersionStanding) -> str:
    return f"{model.name}:{version.number}" if version.archived else model.name


def _change(registry: Path, name: str, decide: Decision) -> RegisteredModel:
    """Append the event that is decided on; returns the model behind it."""
    model = registered_models.model(registry, name)
    with reachable(model.folder):
        return model_events.append(
            model.folder,
            Sharing.of(registry).files,
            lambda events: registered_models.fold(model.folder, events),
            decide,
        )
