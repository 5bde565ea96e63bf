"""An image that is an option of the launcher, as ``--environment`` of a container engine."""

from __future__ import annotations

from pathlib import Path

from hpcdet.containers.runtime import Bind, Contained, ContainerRequest, Form, RegistryLogin


class LauncherOption:
    """``common.ContainerRuntime`` for sites whose launcher knows images by name or file.

    What it shows of the host is said there.
    """

    command = ""
    by_launcher = True
    form: Form = "name"
    suffix = ""

    def contained(self, request: ContainerRequest) -> Contained:
        """See ``common.ContainerRuntime``."""
        return Contained(request.command, (f"--{request.option}={request.image}", *request.args))

    def unfit(self, image: Path, binds: tuple[Bind, ...]) -> tuple[str, str]:
        """See ``common.ContainerRuntime``."""
        return "", ""

    def fetch(self, reference: str, target: Path) -> list[tuple[str, ...]]:
        """See ``common.ContainerRuntime``."""
        return []

    def identify(self, reference: str) -> tuple[str, ...]:
        """See ``common.ContainerRuntime``."""
        return ()

    def login(self, login: RegistryLogin, server: str, folder: Path) -> dict[str, str]:
        """See ``common.ContainerRuntime``."""
        return {}


RUNTIME = LauncherOption()
