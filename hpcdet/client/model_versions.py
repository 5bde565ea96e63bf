"""Registered models and their versions as Python objects."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hpcdet.client.handles import Checkpoint, Experiment
from hpcdet.client.run_verb import run, warn
from hpcdet.registry import model_names, registered_models, registry_place, version_views
from hpcdet.registry.version_views import VersionView
from hpcdet.site_files import roots


@dataclass(frozen=True)
class ModelVersion(VersionView):
    """A version of a registered model: the item of ``hpcdet registry show``."""

    def get(self, path: str | Path) -> Path:
        """Copy its checkpoint to a folder, which must not exist yet; every byte is verified."""
        from hpcdet.registry import version_files
        from hpcdet.registry.registered_models import folder_of

        target = Path(path).expanduser().absolute()
        found = registered_models.version(registry_folder(), self.id)
        root = folder_of(found.model.folder, found.number)
        with registry_place.reachable(target):
            version_files.get(root, found.record.files, found.checkpoint, target)
        return target


@dataclass(frozen=True)
class Model:
    """A registered model.

    Attributes:
        name: its name.
    """

    name: str

    def versions(self) -> list[ModelVersion]:
        """Return its versions, oldest first; of damaged ones there is a warning.

        Raises:
            NotFound: there is no such model.
        """
        found = version_views.versions(registry_folder(), self.name)
        for warning in found.warnings:
            warn(warning)
        return [ModelVersion(**vars(row)) for row in found.items]

    def best(self, metric: str = "", *, smaller_is_better: bool | None = None) -> ModelVersion:
        """Return the version with the best value.

        Args:
            metric: "": the one that its searches compared by.
            smaller_is_better: None: as its searches had it.

        Raises:
            NotFound: no version has a value of the metric.
            UsageError: it is not known which values are better.
        """
        found, _ = version_views.best(registry_folder(), self.name, metric, smaller_is_better)
        return ModelVersion(**vars(version_views.view(found)))

    def add(self, source: str | Experiment | Checkpoint, version: str = "") -> ModelVersion:
        """Add a version, and the model if there is none of the name.

        Args:
            source: an experiment (its best checkpoint), a checkpoint, or ``ID/3``.
            version: a semantic version, as ``1.4.0``.

        Raises:
            UsageError: name or version are taken, or no names.
            IntegrityError: the checkpoint is damaged.
        """
        what = source if isinstance(source, str) else str(source.path)
        best = ["--best"] if isinstance(source, Experiment) else []
        named = ["--version", version] if version else []
        [item] = run("registry", "add", self.name, what, *best, *named)
        return self._version(item["id"])

    def alias(self, version: int | str, alias: str) -> None:
        """Let an alias name a version from now on."""
        run("registry", "alias", f"{self.name}:{version}", alias)

    def get(self, version: int | str) -> ModelVersion:
        """Return a version by its number, its alias (``@production``) or a range (``@^1.4``).

        Raises:
            NotFound: there is none.
        """
        text = str(version)
        return self._version(f"{self.name}{text if text.startswith('@') else f':{text}'}")

    def _version(self, reference: str) -> ModelVersion:
        found = registered_models.version(registry_folder(), reference)
        return ModelVersion(**vars(version_views.view(found)))


def models() -> list[Model]:
    """Return the registered models, by name."""
    return [Model(name) for name in registered_models.names(registry_folder())]


def model(name: str) -> Model:
    """Return a registered model, or the name for a new one.

    Raises:
        UsageError: no model can have the name.
    """
    return Model(model_names.model_name(name))


def registry_folder() -> Path:
    """Return the registry: ``$HPCDET_REGISTRY``, the site's, or in the folder of experiments."""
    import os

    if os.environ.get(registry_place.VARIABLE):
        return registry_place.folder(Path())
    from hpcdet.site import folders
    from hpcdet.site_files import load_site

    site = load_site.load(None)
    return registry_place.folder(roots.at(site), folders.registry(site))
