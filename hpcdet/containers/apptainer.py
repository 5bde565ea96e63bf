"""Apptainer, and what was Singularity."""

from __future__ import annotations

from pathlib import Path

from hpcdet.containers import runtime
from hpcdet.containers.runtime import Bind, Contained, ContainerRequest, Form, RegistryLogin

_DEVICES = {"cuda": ("--nv",), "rocm": ("--rocm",), "cpu": ()}


class Apptainer:
    """``runtime.ContainerRuntime`` for ``apptainer``.

    Variables of the host are those of the container but PATH and LD_LIBRARY_PATH.
    """

    command = "apptainer"
    by_launcher = False
    form: Form = "file"
    suffix = ".sif"

    def contained(self, request: ContainerRequest) -> Contained:
        """See ``runtime.ContainerRuntime``."""
        argv = (
            *(self.command, "exec", "--pwd", request.folder),
            *(word for bind in request.binds for word in ("--bind", _mount(bind))),
            *_DEVICES[request.accelerator],
            *request.args,
            request.image,
            *request.command,
        )
        return Contained(argv)

    def unfit(self, image: Path, binds: tuple[Bind, ...]) -> tuple[str, str]:
        """See ``runtime.ContainerRuntime``. It makes the folders for binds itself."""
        return "", ""

    def fetch(self, reference: str, target: Path) -> list[tuple[str, ...]]:
        """See ``runtime.ContainerRuntime``."""
        return [(self.command, "pull", str(target), runtime.with_transport(reference))]

    def identify(self, reference: str) -> tuple[str, ...]:
        """See ``runtime.ContainerRuntime``."""
        return ()

    def login(self, login: RegistryLogin, server: str, folder: Path) -> dict[str, str]:
        """See ``runtime.ContainerRuntime``."""
        return {
            "APPTAINER_DOCKER_USERNAME": login.username,
            "APPTAINER_DOCKER_PASSWORD": login.password,
        }


def _mount(bind: Bind) -> str:
    return f"{bind.source}:{bind.target}" + (":ro" if bind.read_only else "")


RUNTIME = Apptainer()
