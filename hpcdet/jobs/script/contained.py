"""The command of a rank in its container: what it sees of the host, and by which variables."""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hpcdet
from hpcdet.containers import image_files, node_copy, opening
from hpcdet.containers.runtime import Bind, Contained, ContainerRequest
from hpcdet.errors import ConfigError
from hpcdet.jobs.script import interpreters
from hpcdet.schedulers import opening as schedulers
from hpcdet.schedulers.common import variables
from hpcdet.site import Container, Site, folders
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.config.sections.image_keys import Accelerator, named_images
from hpcdet.store.folder import scratch
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files
from hpcdet.store.trials import staged_data

DIGEST = "HPCDET_IMAGE"
"""The digest of a rank's image, as it is now."""

_PACKAGE = Path(hpcdet.__file__).resolve().parent
_STAND_IN = _PACKAGE / "containers" / "bound"
_OF_HOST = (
    "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX",
)  # fmt: skip
"""Variables that lead to libraries of the host, which an image does not have."""
_SIGNS: tuple[tuple[str, Accelerator], ...] = (("/dev/nvidiactl", "cuda"), ("/dev/kfd", "rocm"))


@dataclass(frozen=True)
class RankImage:
    """The image of an experiment's ranks at a site.

    Attributes:
        name: a path, or the name by which the runtime knows it.
        container: the site's.
        accelerator: of the node.
    """

    name: str
    container: Container
    accelerator: Accelerator


def image(experiment: Resolved, site: Site) -> RankImage | None:
    """The image of the ranks that start here; None: they run on the host.

    Raises:
        ConfigError: the site has no containers, or there is no image for this kind of node.
    """
    named = named_images(experiment.environment.image)
    if not named:
        return None
    if site.container is None:
        raise ConfigError(
            f"site {site.name} has no containers",
            where="environment.image",
            hint="--ignore environment.image runs the code on the host, with environment.python; "
            "or container: {kind: apptainer} in the site file (docs/guides/containers.md)",
        )
    kind = site.container.accelerator or _found()
    different = set(named.values())
    name = named.get(kind) or (different.pop() if len(different) == 1 else "")
    if not name:
        raise ConfigError(
            f"there is no image for nodes with {kind}",
            where="environment.image",
            hint=f"add {kind}, or container.accelerator in the site file; those there are: "
            f"{', '.join(named)}",
        )
    return RankImage(name, site.container, kind)


def command(
    image: RankImage,
    experiment: Resolved,
    site: Site,
    paths: ExperimentPaths,
    arguments: Sequence[str],
    environ: Mapping[str, str],
) -> Contained:
    """Return how to run Python in an image, with these arguments.

    Args:
        environ: of the command, for the runtimes that have to be told.
    """
    asked = experiment.environment
    own = {**asked.environment_variables, **asked.cpu_variables, **asked.cuda_variables}
    path = os.pathsep.join(filter(None, (str(_STAND_IN), own.get("PYTHONPATH"))))
    changes = [*(f"-u{name}" for name in _OF_HOST if name not in own), f"PYTHONPATH={path}"]
    if "USER" not in environ:  # without it ch-run refuses to start
        changes.append(f"USER={getpass.getuser()}")
    python = interpreters.of_ranks(experiment, site)
    runtime = opening.runtime(image.container)
    made = runtime.contained(
        ContainerRequest(
            image=image.name,
            command=(python, *arguments),
            folder=str(paths.code),
            binds=binds(experiment, site, paths),
            args=tuple(image.container.args),
            accelerator=image.accelerator,
            ranks=(*variables.JOB, *schedulers.of(site).names.job),
            environ=(*_passed(environ), "PYTHONPATH"),
            option=image.container.option or "",
        )
    )
    whole = ("/usr/bin/env", *changes, *made.command)
    # a shell of an attempt without an image has the disk alone
    if staged_data.PLACE in environ and DIGEST in environ and is_staged(image):
        python = interpreters.of_jobs(experiment, site)
        whole = node_copy.command(python, image.name, environ[DIGEST], whole)
    return Contained(whole, made.step_args)


def is_staged(image: RankImage | None) -> bool:
    """True if nodes copy the image to their own disk: the site asks for it, and it is a file."""
    return image is not None and image.container.stage and Path(image.name).is_file()


def binds(experiment: Resolved, site: Site, paths: ExperimentPaths) -> tuple[Bind, ...]:
    """Return what a rank's container shows of the host: no two in the same place.

    Code, checkpoints and logs of the experiment; the site's; those of ``bind_mounts``; local disks
    that it uses; and hpcdet.
    """
    found = [Bind(str(paths.root.resolve()), str(paths.root))]
    if (purged := scratch.target(paths)) is not None:
        found.append(Bind(str(purged), str(purged)))
    found += [_of_site(text) for text in (site.container.binds if site.container else ())]
    for mount in experiment.bind_mounts or ():
        target = str(paths.code / mount.container_path)
        found.append(Bind(mount.host_path, target, mount.read_only))
    local = (experiment.checkpoint_storage.local_staging, site.paths.local)
    used = (bool(local[0]), bool(experiment.staged))
    for text, is_used in zip(local, used, strict=True):
        if is_used and (place := folders.folder(text)) is not None:
            found.append(Bind(str(place), str(place)))
    for text in experiment.staged:
        if (place := folders.folder(text)) is not None:
            found.append(Bind(str(place), str(place)))
    found.append(Bind(str(_PACKAGE), str(_PACKAGE), optional=True))
    by_target = {bind.target: bind for bind in reversed(found)}
    return tuple(dict.fromkeys(by_target[bind.target] for bind in found))


def digest_now(image: RankImage, paths: ExperimentPaths) -> str:
    """Return the present digest of an image; "" where the launcher alone knows it.

    It is computed anew only where sizes or times are not those of the submission.
    """
    record = files.read_json(paths.provenance)
    known: Any = record.get("images") if isinstance(record, dict) else None
    found = known.get(image.name) if isinstance(known, dict) else None
    digest, stamp = (found or {}).get("digest", ""), (found or {}).get("stamp", "")
    path = Path(image.name)
    if not path.is_absolute():
        return str(digest)
    try:
        if stamp and image_files.stamp(path) == stamp:
            return str(digest)
        return image_files.digest(path)
    except OSError as error:
        what = f"cannot read the image: {error.strerror}"
        raise ConfigError(what, where=image.name, hint="is it seen on the nodes?") from error


def _of_site(text: str) -> Bind:
    """Return a bind of a site file: ``SOURCE[:TARGET[:ro]]``."""
    source, target, options = (*os.path.expandvars(text).split(":"), "", "")[:3]
    source = str(Path(source).expanduser())
    return Bind(source, target or source, options == "ro")


def _found() -> Accelerator:
    """Return the kind of accelerators that this machine has."""
    return next((kind for sign, kind in _SIGNS if os.path.exists(sign)), "cpu")


def _passed(environ: Mapping[str, str]) -> list[str]:
    """Return the names of variables that are no matter of the host."""
    own = {*_OF_HOST, "PATH", "HOME", "PWD", "SHLVL", "_", "PYTHONPATH", "TMPDIR", "HOSTNAME"}
    return [name for name in environ if name not in own and "(" not in name and "%" not in name]
