"""A backend whose faces are modules or objects, each imported where it is first asked for."""

from __future__ import annotations

import importlib
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hpcdet.schedulers.common.backend import FactsFace, InsideFace, NamesFace, ScriptFace
from hpcdet.schedulers.common.base import Scheduler

if TYPE_CHECKING:
    from hpcdet.site import Site


class LazyBackend:
    """``backend.Backend`` for a cluster.

    Args:
        name: as in ``scheduler`` of a site file.
        package: that of the backend.
        control: the class of the queue, ``MODULE:CLASS`` in the package; it is given the site.
        script, inside, names, facts: ``MODULE``, or ``MODULE:OBJECT``.
    """

    cluster = True

    def __init__(
        self, name: str, package: str, *, control: str, script: str, inside: str, names: str,
        facts: str,
    ) -> None:  # fmt: skip
        self.name = name
        self._package = package
        self._where = {
            "control": control, "script": script, "inside": inside, "names": names, "facts": facts,
        }  # fmt: skip

    def control(self, site: Site) -> Scheduler:
        """See ``backend.Backend``."""
        scheduler: Scheduler = self._face("control")(site)
        return scheduler

    @cached_property
    def script(self) -> ScriptFace:
        """Directives."""
        face: ScriptFace = self._face("script")
        return face

    @cached_property
    def inside(self) -> InsideFace:
        """A worker's questions inside its allocation."""
        face: InsideFace = self._face("inside")
        return face

    @cached_property
    def names(self) -> NamesFace:
        """Variables and ids."""
        face: NamesFace = self._face("names")
        return face

    @cached_property
    def facts(self) -> FactsFace:
        """The cluster's description of itself."""
        face: FactsFace = self._face("facts")
        return face

    def _face(self, which: str) -> Any:
        module, _, name = self._where[which].partition(":")
        found = importlib.import_module(f"{self._package}.{module}")
        return getattr(found, name) if name else found
