"""Models of the registry as ``determined.experimental.client`` has them."""

from __future__ import annotations

from typing import Any

from hpcdet.determined.experimental._client_checkpoints import Checkpoint, by_folder, checkpoint_of
from hpcdet.errors import NotFound


class ModelVersion:
    """A version of a model.

    Attributes:
        model_version: its number.
        name: its semantic version; "" without one.
        notes: its notes, a line each.
    """

    def __init__(self, row: Any) -> None:
        self._row = row
        self.model_name: str = row.model
        self.model_id: str = row.model
        self.model_version: int = row.version
        self.name: str = row.semantic
        self.notes = "\n".join(note.text for note in row.notes)
        self.comment = self.notes
        self.metadata: dict[str, Any] = dict(row.capsule)

    def __repr__(self) -> str:
        return f"ModelVersion({self._row.id})"

    @property
    def checkpoint(self) -> Checkpoint:
        """Its checkpoint, in the registry."""
        return checkpoint_of(*by_folder(self._row.path))

    def reload(self) -> None:
        """Nothing: a version never changes."""


class Model:
    """A model: its name is its id."""

    def __init__(self, model_id: str, session: object = None) -> None:
        from hpcdet import client

        self._model = client.model(model_id)
        self.name = self.model_id = model_id

    def __repr__(self) -> str:
        return f"Model({self.name})"

    def list_versions(self, sort_by: object = None) -> list[ModelVersion]:
        """Return its versions, the newest first."""
        return [ModelVersion(row) for row in reversed(self._model.versions())]

    get_versions = list_versions

    def get_version(self, version: int = -1) -> ModelVersion | None:
        """Return a version by its number, the newest for -1; None if there is none."""
        try:
            found = self._model.versions()
        except NotFound:
            return None
        chosen = [row for row in found if version in (-1, row.version)]
        return ModelVersion(chosen[-1]) if chosen else None

    def register_version(self, checkpoint_uuid: str) -> ModelVersion:
        """Make a checkpoint the next version."""
        return ModelVersion(self._model.add(checkpoint_uuid))

    def reload(self) -> None:
        """Nothing: everything is read anew."""
