"""Container runtimes by the names that site files have for them."""

from __future__ import annotations

from collections.abc import Mapping

from hpcdet.containers import apptainer, charliecloud, launcher_option, podman_hpc, pyxis
from hpcdet.containers.runtime import ContainerRuntime
from hpcdet.site import Container

_RUNTIMES: Mapping[str, ContainerRuntime] = {
    "apptainer": apptainer.RUNTIME,
    "charliecloud": charliecloud.RUNTIME,
    "podman-hpc": podman_hpc.RUNTIME,
    "pyxis": pyxis.RUNTIME,
    "option": launcher_option.RUNTIME,
}


def runtime(container: Container) -> ContainerRuntime:
    """The runtime of a site's ``container``."""
    return _RUNTIMES[container.kind]
