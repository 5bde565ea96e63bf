"""Folders of a site: experiments on project storage, else on scratch."""

from __future__ import annotations

from pathlib import Path

from hpcdet.site.models import Site
from hpcdet.site.shell_variables import expanded
from hpcdet.store.folder.names import EXPERIMENTS


def folder(text: str | None) -> Path | None:
    """A path of a site file, with ``$VARIABLES`` and ``~`` expanded."""
    return Path(expanded(text)).absolute() if text else None


def experiments(site: Site) -> Path | None:
    """The folder of experiments that the site names; None if it names none."""
    root = folder(site.paths.root)
    place = folder(site.paths.project) or folder(site.paths.scratch)
    return root or (place / EXPERIMENTS if place else None)


def registry(site: Site) -> Path | None:
    """The registry of models that the site names; None if it names none."""
    return folder(site.paths.registry)


def scratch(site: Site, root: Path) -> Path | None:
    """The folder on scratch for what may be purged of the experiments in ``root``.

    None where all of an experiment is in one place: the site has no project storage, or names
    the folder of experiments itself, or ``root`` is not on its project storage.
    """
    project, purged = folder(site.paths.project), folder(site.paths.scratch)
    if site.paths.root or project is None or purged is None:
        return None
    if not root.resolve().is_relative_to(project.resolve()):
        return None
    return purged / EXPERIMENTS
