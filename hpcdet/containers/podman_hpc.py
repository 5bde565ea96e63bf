"""Podman-HPC, a rootless Podman whose images are migrated to a shared file system."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from hpcdet.containers import runtime
from hpcdet.containers.runtime import Bind, Contained, ContainerRequest, Form, RegistryLogin
from hpcdet.store.fs import files

_DEVICES = {"cuda": ("--gpu",), "rocm": ("--device=/dev/kfd", "--device=/dev/dri"), "cpu": ()}
_AS_ON_THE_HOST = ("--network=host", "--pid=host", "--ipc=host", "--userns=keep-id")
"""Ranks meet over sockets and shared memory, and files belong to who runs them."""


class PodmanHpc:
    """``runtime.ContainerRuntime`` for ``podman-hpc``.

    It shows none of the host's variables: each is passed by its name, so that no value stands in
    the list of processes.
    """

    command = "podman-hpc"
    by_launcher = False
    form: Form = "store"
    suffix = ""

    def contained(self, request: ContainerRequest) -> Contained:
        """See ``runtime.ContainerRuntime``."""
        patterns = (pattern for pattern in request.ranks if "[" not in pattern)
        names = sorted({*request.environ, *patterns})
        argv = (
            *(self.command, "run", "--rm", *_AS_ON_THE_HOST, "--workdir", request.folder),
            *(word for bind in request.binds for word in ("--volume", _volume(bind))),
            *(word for name in names for word in ("--env", name)),
            *_DEVICES[request.accelerator],
            *request.args,
            request.image,
            *request.command,
        )
        return Contained(argv)

    def unfit(self, image: Path, binds: tuple[Bind, ...]) -> tuple[str, str]:
        """See ``runtime.ContainerRuntime``."""
        what = f"{self.command} runs images of its own store, and {image} is a file or folder"
        return what, "a reference, as docker://NAME:TAG"

    def fetch(self, reference: str, target: Path) -> list[tuple[str, ...]]:
        """See ``runtime.ContainerRuntime``."""
        return [(self.command, "pull", runtime.with_transport(reference))]

    def identify(self, reference: str) -> tuple[str, ...]:
        """See ``runtime.ContainerRuntime``."""
        name = runtime.plain(reference)
        return (self.command, "image", "inspect", "--format", "{{.Id}}", name)

    def login(self, login: RegistryLogin, server: str, folder: Path) -> dict[str, str]:
        """See ``runtime.ContainerRuntime``."""
        pair = base64.b64encode(f"{login.username}:{login.password}".encode()).decode()
        known = {"auths": {login.server or server: {"auth": pair}}}
        files.write_once(folder / "auth.json", json.dumps(known).encode())
        return {"REGISTRY_AUTH_FILE": str(folder / "auth.json")}


def _volume(bind: Bind) -> str:
    return f"{bind.source}:{bind.target}" + (":ro" if bind.read_only else "")


RUNTIME = PodmanHpc()
