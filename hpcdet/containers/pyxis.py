"""Pyxis: the launcher itself starts its ranks in containers of Enroot."""

from __future__ import annotations

from pathlib import Path

from hpcdet.containers import runtime
from hpcdet.containers.runtime import Bind, Contained, ContainerRequest, Form, RegistryLogin
from hpcdet.store.fs import files

_DOCKER = ("docker.io", "auth.docker.io")
"""Docker's registry, and who gives out its tokens."""


class Pyxis:
    """``runtime.ContainerRuntime`` for the options that Pyxis adds to the launcher.

    Enroot finds the devices that the scheduler has given to the step.
    """

    command = ""
    by_launcher = True
    form: Form = "file"
    suffix = ".sqsh"

    def contained(self, request: ContainerRequest) -> Contained:
        """See ``runtime.ContainerRuntime``."""
        mounts = ",".join(map(_mount, request.binds))
        options = (
            f"--container-image={request.image}",
            *((f"--container-mounts={mounts}",) if mounts else ()),
            f"--container-workdir={request.folder}",
            *request.args,
        )
        return Contained(request.command, options)

    def unfit(self, image: Path, binds: tuple[Bind, ...]) -> tuple[str, str]:
        """See ``runtime.ContainerRuntime``."""
        for bind in binds:
            if "," in bind.source + bind.target:
                return f"Pyxis cannot mount {bind.source}: a comma is in its name", "rename it"
        return "", ""

    def fetch(self, reference: str, target: Path) -> list[tuple[str, ...]]:
        """See ``runtime.ContainerRuntime``."""
        server, name = runtime.registry(reference), runtime.plain(reference)
        named = f"{server}#{name.removeprefix(f'{server}/')}" if name.startswith(server) else name
        return [("enroot", "import", "--output", str(target), f"docker://{named}")]

    def identify(self, reference: str) -> tuple[str, ...]:
        """See ``runtime.ContainerRuntime``."""
        return ()

    def login(self, login: RegistryLogin, server: str, folder: Path) -> dict[str, str]:
        """See ``runtime.ContainerRuntime``."""
        host = login.server or server
        host = _DOCKER[1] if host == _DOCKER[0] else host
        line = f"machine {host} login {login.username} password {login.password}\n"
        files.write_once(folder / ".credentials", line.encode())
        return {"ENROOT_CONFIG_PATH": str(folder)}


def _mount(bind: Bind) -> str:
    return f"{bind.source}:{bind.target}" + (":ro" if bind.read_only else "")


RUNTIME = Pyxis()
