"""Keys of a site file that only its scheduler and its launchers read."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

from hpcdet.errors import ConfigError
from hpcdet.launchers import opening as launchers
from hpcdet.schedulers import opening as schedulers
from hpcdet.schedulers.common.backend import Backend
from hpcdet.site.models import Detection, Site
from hpcdet.store.fs.yaml12 import Document, KeyPath


def checked(site: Site, origins: Mapping[KeyPath, Document], own: Document) -> Backend:
    """Return the site's backend, once these keys are found to be what can be read.

    Args:
        origins: the file of each key.
        own: the site's file.

    Raises:
        ConfigError: with file and line: no such backend or launcher, no such way of detection, or
            a capability that a scheduler does not understand.
    """
    for key, message, hint in _wrong(site):
        layer = next((origins[key[:n]] for n in range(len(key), 0, -1) if key[:n] in origins), own)
        raise ConfigError(message, where=f"{layer.origin(key)}: {'.'.join(key)}", hint=hint)
    return schedulers.of(site)


def _wrong(site: Site) -> Iterator[tuple[KeyPath, str, str]]:
    """Yield each wrong key with what is wrong and a repair."""
    try:
        schedulers.of(site)
    except ConfigError as error:
        yield ("scheduler",), error.what, error.hint
    for number, rule in enumerate(site.detect):
        if (asked := rule.of_cluster) is not None:
            yield from _way((*("detect", str(number)), asked[0]))
    kinds: dict[KeyPath, str | None] = {("launcher", "kind"): site.launcher.kind}
    for name, part in site.partitions.items():
        if part.launcher is not None:
            kinds["partitions", name, "launcher", "kind"] = part.launcher.kind
    for key, kind in kinds.items():
        try:
            if kind is not None:
                launchers.launcher(kind)
        except ConfigError as error:
            yield key, error.what, error.hint
    known = schedulers.names()
    for name, asked_of in (site.governance.capabilities if site.governance else {}).items():
        for scheduler, given in asked_of.items():
            # of one that is not installed here nothing can be said
            if scheduler in known and given is not None:
                key = ("governance", "capabilities", name, scheduler)
                try:
                    schedulers.backend(scheduler).script.check_capability(given)
                except ValueError as error:
                    yield key, str(error), ""


def _way(key: KeyPath) -> Iterator[tuple[KeyPath, str, str]]:
    offered = [name for one in schedulers.every() for name in one.facts.keys]
    known = [*Detection.model_fields, *offered]
    if key[-1] not in offered:
        near = difflib.get_close_matches(key[-1], known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(sorted(known))}"
        yield key, f"unknown key {key[-1]!r}", hint
