"""Whether a config's container image and staged data can be had at a site, before anything is."""

from __future__ import annotations

from pathlib import Path

from hpcdet.containers import opening
from hpcdet.errors import ConfigError
from hpcdet.jobs.create import images
from hpcdet.jobs.script import contained
from hpcdet.launchers import opening as launchers
from hpcdet.site import PartitionView, Site, folders
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.config.sections.image_keys import is_path
from hpcdet.store.folder.layout import ExperimentPaths


def refuse_unusable(experiment: Resolved, site: Site, view: PartitionView, root: Path) -> None:
    """Refuse an image that cannot run at a site, and data that cannot be staged there.

    Args:
        root: the folder of experiments.

    Raises:
        ConfigError: the site has no containers, or none for this launcher; the image is not there
            or does not fit; a bound folder or staged data is not there.
    """
    _refuse_unstaged(experiment, site)
    if not images.asked_for(experiment, site):
        return
    contained.image(experiment, site)
    assert site.container is not None
    runtime = opening.runtime(site.container)
    kind = launchers.kind_of(site, view)
    if runtime.by_launcher and not launchers.launcher(kind).contains:
        raise ConfigError(
            f"launcher {kind} starts no containers, and container.kind is {site.container.kind}",
            where=images.IMAGE,
            hint="another launcher or another container.kind in the site file",
        )
    paths = ExperimentPaths(root / "experiment")
    binds = contained.binds(experiment, site, paths)
    for mount in experiment.bind_mounts or ():
        if not Path(mount.host_path).exists():
            raise ConfigError(f"{mount.host_path} is not there", where="bind_mounts")
    for given in dict.fromkeys(images.asked_for(experiment, site).values()):
        if is_path(given):
            path = images.place(given, site)
            if not path.exists():
                hint = "a path of a file or folder that is there, or docker://NAME:TAG"
                raise ConfigError(f"there is no image {path}", where=images.IMAGE, hint=hint)
            what, hint = runtime.unfit(path, binds)
            if what:
                raise ConfigError(what, where=images.IMAGE, hint=hint)
        elif runtime.form != "name" and site.paths.images is None:
            raise images.no_folder(site, given)


def _refuse_unstaged(experiment: Resolved, site: Site) -> None:
    if not experiment.staged:
        return
    if site.paths.local is None:
        raise ConfigError(
            f"site {site.name} does not say where a node's own disk is",
            where="data.stage",
            hint="paths: {local: $TMPDIR} in the site file; or leave data.stage out and read the "
            "data where it is",
        )
    for text in experiment.staged:
        path = folders.folder(text)
        if path is not None and "$" not in str(path) and not path.exists():
            raise ConfigError(f"{path} is not there", where="data.stage")
