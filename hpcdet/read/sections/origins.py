"""The sections ``lineage``, ``config`` and ``reproduce``: where an experiment came from."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hpcdet import units
from hpcdet.errors import HpcdetError
from hpcdet.read.experiment import changes
from hpcdet.read.experiment.changes import Change
from hpcdet.read.experiment.gather import Gathered
from hpcdet.read.lookup import lineage as ancestry
from hpcdet.read.lookup.lineage import StretchView
from hpcdet.read.sections.trial_rows import flat
from hpcdet.read.views.trials import FingerprintView, fingerprints
from hpcdet.read.views.views import StatusView
from hpcdet.store.config import data_secrets, resolved_config

_FACTS = 60
_APART = ("argv", "code", "data", "origins", "packages")
"""Parts of the provenance that are told otherwise, or in other sections."""
_LONGEST = 200


@dataclass(frozen=True)
class HeirView:
    """A trial that began from another one's checkpoint."""

    trial: int
    """Its number."""
    parent: str
    """What it began from, as ``3@400 batches``; of a fork with the experiment's folder."""


@dataclass(frozen=True)
class LineageSection:
    """Where trials began from."""

    begin_from: str
    """The checkpoint that the whole search began from; "" without one."""
    best: list[StretchView]
    """The best trial and its ancestors, the first one first; empty while none is best."""
    heirs: list[HeirView]
    """Trials that began from another one."""


@dataclass(frozen=True)
class ConfigValue:
    """A value of the config that is not a default."""

    key: str
    """The key."""
    value: Any
    """Its value."""
    origin: str
    """Where it comes from."""


@dataclass(frozen=True)
class ConfigSection:
    """The config."""

    text: str
    """The resolved config as YAML, with every default."""
    given: list[ConfigValue]
    """Values that were given, by key; none where their origins are not recorded."""
    changes: list[Change]
    """Changes since the submission, by key."""


@dataclass(frozen=True)
class FactView:
    """A fact of the provenance."""

    name: str
    """What it is."""
    value: str
    """Its value."""


@dataclass(frozen=True)
class ReproduceSection:
    """Everything needed to train it again."""

    commands: list[str]
    """Commands that made it, that say what has changed since, and that train it again."""
    facts: list[FactView]
    """Facts of the provenance; all of it is in ``provenance.json``."""
    packages: dict[str, str]
    """Version of every package, at the submission."""
    environments: list[FingerprintView]
    """Environments that attempts ran in."""


def git(gathered: Gathered) -> dict[str, Any]:
    """Return what is recorded of the repository; empty without one."""
    value = gathered.provenance.get("git")
    return value if isinstance(value, dict) else {}


def lineage(gathered: Gathered, status: StatusView) -> LineageSection:
    """Return the section ``lineage``."""
    best: list[StretchView] = []
    if status.best is not None:
        with contextlib.suppress(HpcdetError):  # a damaged record; ``lineage`` says which
            best = ancestry.chain(gathered, status.best.trial)
    heirs = [HeirView(row.trial, row.parent) for row in status.trials if row.parent]
    return LineageSection(gathered.config.searcher.begin_from or "", best, heirs)


def config(gathered: Gathered, environment: bool = True) -> ConfigSection:
    """Return the section ``config``; secrets are not in it.

    Args:
        environment: with the variables of ``environment``.
    """
    raw = data_secrets.hidden(gathered.config.raw)
    if not environment and "environment" in raw:
        raw = {**raw, "environment": "(redacted)"}
    recorded = gathered.provenance.get("origins")
    origins = recorded if isinstance(recorded, dict) else {}
    values = flat(raw)
    given = [
        ConfigValue(key, values[key], str(origin))
        for key, origin in sorted(origins.items())
        if key in values and origin not in ("default", "derived")
    ]
    return ConfigSection(resolved_config.dump(raw).decode(), given, changes.changes(gathered))


def reproduce(gathered: Gathered, best: int | None) -> ReproduceSection:
    """Return the section ``reproduce``; ``best``: the trial that its commands are about."""
    known = gathered.provenance
    packages = known.get("packages")
    return ReproduceSection(
        commands=[*_commands(gathered, best)],
        facts=[*_facts(gathered)],
        packages={str(k): str(v) for k, v in packages.items()}
        if isinstance(packages, dict)
        else {},
        environments=fingerprints(gathered),
    )


def _words(value: Any) -> str:
    return shlex.join(map(str, value)) if isinstance(value, list) else ""


def _commands(gathered: Gathered, best: int | None) -> Iterator[str]:
    recorded = git(gathered)
    if recorded.get("commit"):
        yield f"git checkout {recorded['commit']}"
    if submitted := _words(gathered.provenance.get("argv")):
        yield submitted
    name = f"{gathered.id}/{best}" if best else gathered.id
    yield f"hpcdet reproduce {name}        # what has changed since"
    if best and gathered.config.governance is None and not gathered.imported:
        yield f"hpcdet reproduce {name} --run  # the same bits again"


def _facts(gathered: Gathered) -> Iterator[FactView]:
    known = gathered.provenance
    if command := _words(known.get("argv")):
        yield FactView("command", command)
    for one in _records(known.get("data")):
        yield FactView(f"data {one.get('path')}", f"{one.get('digest')}, {one.get('files')} files")
    if isinstance(code := known.get("code"), dict):
        yield FactView("code", units.counted(len(code), "file"))
    rest = flat({name: item for name, item in known.items() if name not in _APART})
    facts = [
        FactView(name, str(item))
        for name, item in sorted(rest.items())
        if isinstance(item, str | int | float)
        and len(str(item)) <= _LONGEST
        and "\n" not in str(item)
    ]
    yield from facts[:_FACTS]


def _records(value: Any) -> Sequence[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
