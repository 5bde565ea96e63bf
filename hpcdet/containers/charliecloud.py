"""Charliecloud: ``ch-run`` on a folder, or on a SquashFS file where it may mount one."""

from __future__ import annotations

from pathlib import Path

from hpcdet.containers import runtime
from hpcdet.containers.runtime import Bind, Contained, ContainerRequest, Form, RegistryLogin

_OF_HOST = ("/dev", "/proc", "/sys", "/tmp")
"""What ``ch-run`` shows of the host in every container."""


class Charliecloud:
    """``runtime.ContainerRuntime`` for ``ch-run``.

    A folder can be bound only where the image has one; it shows all variables of the host, and
    those that the image itself has come from its ``/ch/environment``.
    """

    command = "ch-run"
    by_launcher = False
    form: Form = "folder"
    suffix = ""

    def contained(self, request: ContainerRequest) -> Contained:
        """See ``runtime.ContainerRuntime``. It cannot bind for reading only."""
        image = Path(request.image)
        own = (image / "ch" / "environment").is_file()
        argv = (
            *(self.command, "--cd", request.folder),
            *(f"--bind={source}:{target}" for source, target in _mounts(image, request.binds)),
            *(("--set-env",) if own else ()),
            *request.args,
            request.image,
            "--",
            *request.command,
        )
        return Contained(argv)

    def unfit(self, image: Path, binds: tuple[Bind, ...]) -> tuple[str, str]:
        """See ``runtime.ContainerRuntime``."""
        for bind in binds:
            if bind.read_only:
                what = f"{self.command} cannot bind {bind.source} for reading only"
                return what, "leave read_only out of its bind_mounts"
            if bind.optional or _is_shown(bind.target) or not image.is_dir():
                continue
            if _place(image, bind) is None:
                what = f"{image} has no folder {bind.target} to show {bind.source} in"
                return what, f"mkdir -p {image}{bind.target}"
        return "", ""

    def fetch(self, reference: str, target: Path) -> list[tuple[str, ...]]:
        """See ``runtime.ContainerRuntime``."""
        name = runtime.plain(reference)
        return [("ch-image", "pull", name), ("ch-convert", "-i", "ch-image", name, str(target))]

    def identify(self, reference: str) -> tuple[str, ...]:
        """See ``runtime.ContainerRuntime``."""
        return ()

    def login(self, login: RegistryLogin, server: str, folder: Path) -> dict[str, str]:
        """See ``runtime.ContainerRuntime``."""
        return {"CH_IMAGE_USERNAME": login.username, "CH_IMAGE_PASSWORD": login.password}


def _is_shown(target: str) -> bool:
    return any(target == shown or target.startswith(f"{shown}/") for shown in _OF_HOST)


def _mounts(image: Path, binds: tuple[Bind, ...]) -> list[tuple[str, str]]:
    """Return what is bound where: a folder of the image that is a mount point, or one above it.

    Where the image has only ``/scratch``, all of the host's is shown there.
    """
    found: dict[str, str] = {}
    for bind in binds:
        if bind.source == bind.target and _is_shown(bind.target):
            continue
        place = _place(image, bind)
        if place is None and bind.optional and image.is_dir():
            continue
        source, target = place or (bind.source, bind.target)
        found.setdefault(target, source)
    # what lies above hides what was bound below before it
    return [(found[target], target) for target in sorted(found)]


def _place(image: Path, bind: Bind) -> tuple[str, str] | None:
    """Return what to bind and where, by the folders that the image has; None if it has none."""
    source, target = Path(bind.source), Path(bind.target)
    while target != target.parent:
        inside = image / target.relative_to("/")
        if inside.is_dir() and (str(target) == bind.target or not any(inside.iterdir())):
            return str(source), str(target)
        if inside.is_file() and str(target) == bind.target:
            return str(source), str(target)
        if source.name != target.name:
            return None
        source, target = source.parent, target.parent
    return None


RUNTIME = Charliecloud()
