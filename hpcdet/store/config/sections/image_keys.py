"""Keys of the container image in which ranks run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from hpcdet.store.fs.typed_fields import Key

Accelerator = Literal["cpu", "cuda", "rocm"]
ACCELERATORS: tuple[Accelerator, ...] = ("cpu", "cuda", "rocm")
"""Kinds of nodes that have an image of their own, where ``environment.image`` is a map."""


@dataclass(frozen=True)
class BindMount:
    """One of ``bind_mounts``."""

    host_path: Annotated[str, Key(required=True, min_length=1)] = ""
    """A folder or file of the host."""
    container_path: Annotated[str, Key(required=True, min_length=1)] = ""
    """Where the code sees it; relative: in the code's folder."""
    read_only: bool = False
    """The code may not change it."""
    propagation: str = "rprivate"
    """Determined's; mounts are private here."""


def named_images(image: str | Mapping[str, str] | None) -> dict[Accelerator, str]:
    """Return the image for each kind of node, as far as there is one."""
    if image is None:
        return {}
    if isinstance(image, str):
        return dict.fromkeys(ACCELERATORS, image)
    return {kind: image[kind] for kind in ACCELERATORS if image.get(kind)}


def is_path(image: str) -> bool:
    """True for a file or folder; False for a reference, as ``docker://python:3.12``."""
    return image.startswith(("/", "~", "$")) or image.endswith(
        (".sif", ".sqfs", ".sqsh", ".squashfs")
    )
