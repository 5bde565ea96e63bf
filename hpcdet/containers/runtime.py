"""The interface of every container runtime."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from hpcdet.store.config.sections.image_keys import Accelerator

Form = Literal["file", "folder", "store", "name"]


@dataclass(frozen=True)
class Bind:
    """A file or folder of the host, and where the container shows it.

    Attributes:
        optional: an image that cannot show it is used all the same.
    """

    source: str
    target: str
    read_only: bool = False
    optional: bool = False


@dataclass(frozen=True)
class ContainerRequest:
    """One command to be run in a container.

    Attributes:
        image: a path, or the name by which the runtime knows it.
        command: to be run inside.
        folder: in which it starts, as the container shows it.
        binds: no two with the same target.
        args: the site's, for the runtime.
        accelerator: whose devices the command uses.
        ranks: patterns of variables that launchers and schedulers give to a rank.
        environ: names of other variables that the command is to have.
        option: of the launcher, where that takes the image.
    """

    image: str
    command: tuple[str, ...]
    folder: str
    binds: tuple[Bind, ...] = ()
    args: tuple[str, ...] = ()
    accelerator: Accelerator = "cpu"
    ranks: tuple[str, ...] = ()
    environ: tuple[str, ...] = ()
    option: str = ""


@dataclass(frozen=True)
class Contained:
    """A command in its container.

    Attributes:
        command: what is started on the host.
        step_args: further arguments of the launcher.
    """

    command: tuple[str, ...]
    step_args: tuple[str, ...] = ()


@dataclass(frozen=True)
class RegistryLogin:
    """A user of a registry.

    Attributes:
        server: the registry's host; "": the one in the reference.
    """

    username: str
    password: str = field(repr=False)
    server: str = ""


class ContainerRuntime(Protocol):
    """One container runtime.

    Attributes:
        command: its program; "": there is none, as the launcher starts the container.
        by_launcher: only a launcher that has containers of its own starts one.
        form: what it fetches: a file, a folder, an entry of its own store, or nothing but a name.
        suffix: of the file that it fetches.
    """

    @property
    def command(self) -> str: ...

    @property
    def by_launcher(self) -> bool: ...

    @property
    def form(self) -> Form: ...

    @property
    def suffix(self) -> str: ...

    def contained(self, request: ContainerRequest) -> Contained:
        """Return how to run the command in the container."""

    def unfit(self, image: Path, binds: tuple[Bind, ...]) -> tuple[str, str]:
        """Return why an image cannot be used with these binds, and the repair; "" if it can."""

    def fetch(self, reference: str, target: Path) -> list[tuple[str, ...]]:
        """Return the commands that fetch an image, to a path where ``form`` is one."""

    def identify(self, reference: str) -> tuple[str, ...]:
        """Return the command that prints the id of a fetched image in its own store."""

    def login(self, login: RegistryLogin, server: str, folder: Path) -> dict[str, str]:
        """Return the variables by which ``fetch`` logs in at a registry.

        Args:
            folder: a private one, removed afterwards, for files of credentials.
        """


def plain(reference: str) -> str:
    """Return a reference without ``docker://``."""
    return reference.removeprefix("docker://")


def with_transport(reference: str) -> str:
    """Return a reference with ``docker://``, unless it has another transport."""
    return reference if "://" in reference else f"docker://{reference}"


def registry(reference: str) -> str:
    """Return the host of a reference's registry; Docker's own where it names none."""
    first, slash, _ = plain(reference).partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return first
    return "docker.io"
