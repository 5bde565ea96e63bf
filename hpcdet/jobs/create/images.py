"""Container images of a new experiment: found or fetched, and known by their digests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from hpcdet.containers import fetching, image_files, opening
from hpcdet.containers.runtime import ContainerRuntime, RegistryLogin
from hpcdet.errors import ConfigError
from hpcdet.site import Site, folders
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.config.sections.image_keys import Accelerator, is_path, named_images

IMAGE = "environment.image"


class RegistryCredentials(Protocol):
    """The user of a registry, as a config names one."""

    @property
    def username(self) -> str: ...

    @property
    def server(self) -> str: ...

    def secret(self) -> str:
        """Return the password. Raises ConfigError: it is not there."""


def asked_for(experiment: Resolved, site: Site) -> dict[Accelerator, str]:
    """The images that may be needed at a site: that of its accelerator, or all that are named."""
    named = named_images(experiment.environment.image)
    kind = site.container.accelerator if site.container is not None else None
    if kind is None or len(set(named.values())) == 1:
        return named
    if kind not in named:
        hint = f"add {kind}; those there are: {', '.join(named)}"
        raise ConfigError(f"there is no image for nodes with {kind}", where=IMAGE, hint=hint)
    return {kind: named[kind]}


def place(image: str, site: Site) -> Path:
    """The path of an image that is one; of a name alone, in the site's folder of images."""
    images = folders.folder(site.paths.images)
    if images is not None and not image.startswith(("/", "~", "$")):
        return images / image
    return folders.folder(image) or Path(image)


def resolved(
    experiment: Resolved, site: Site, user: RegistryCredentials | None
) -> tuple[str | dict[str, str] | None, dict[str, Mapping[str, str]]]:
    """Find or fetch the images of an experiment.

    Returns:
        ``environment.image`` with what the runtime takes, and by image the record of what it is:
        ``given`` (as the config has it), ``digest``, ``stamp``.

    Raises:
        ConfigError: one is not there, or cannot be fetched.
        Unavailable: the site's folder of images cannot be written.
    """
    named = asked_for(experiment, site)
    if not named or site.container is None:
        return experiment.environment.image, {}
    runtime = opening.runtime(site.container)
    records: dict[str, Mapping[str, str]] = {}
    made: dict[str, str] = {}
    for given in dict.fromkeys(named.values()):
        found = _found(given, site, runtime, user, again=experiment.environment.force_pull_image)
        made[given] = found.image
        records[found.image] = {"given": given, "digest": found.digest, "stamp": found.stamp}
    if isinstance(experiment.environment.image, str):
        return made[experiment.environment.image], records
    return {str(kind): made[given] for kind, given in named.items()}, records


def _found(
    given: str,
    site: Site,
    runtime: ContainerRuntime,
    user: RegistryCredentials | None,
    *,
    again: bool,
) -> fetching.FetchedImage:
    if is_path(given) and runtime.form != "store":
        path = place(given, site)
        try:
            return fetching.FetchedImage(
                str(path), image_files.digest(path), image_files.stamp(path)
            )
        except OSError as error:
            what = f"cannot read the image: {error.strerror}"
            raise ConfigError(what, where=str(error.filename or path)) from error
    images = folders.folder(site.paths.images)
    if images is None:
        if runtime.form != "name":
            raise no_folder(site, given)
        images = Path()
    login = RegistryLogin(user.username, user.secret(), user.server) if user is not None else None
    return fetching.fetched(runtime, given, images, login, again=again)


def no_folder(site: Site, given: str) -> ConfigError:
    """The error of a reference at a site that keeps no images."""
    return ConfigError(
        f"site {site.name} does not say where images are kept",
        where=f"{IMAGE}: {given}",
        hint="paths: {images: FOLDER} in the site file, or the path of an image",
    )
