"""Loading of one checked config from files and flags."""

from __future__ import annotations

import secrets as randomness
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import ValidationError

from hpcdet.config.check import entrypoints, key_consistency, problems, search_methods
from hpcdet.config.check.problems import Problem
from hpcdet.config.check.section_models import DERIVED, SEED, completed
from hpcdet.config.determined import foreign_shapes, unsupported_keys
from hpcdet.config.load import governance_keys as governance
from hpcdet.config.load import image_settings
from hpcdet.config.load import secret_references as secrets
from hpcdet.config.load.image_settings import RegistryUser
from hpcdet.config.load.layers import Layered
from hpcdet.store.config import overrides
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.config.sections.checkpoint_storage import SECTION as STORAGE
from hpcdet.store.fs import yaml12
from hpcdet.store.fs.yaml12 import Document

if TYPE_CHECKING:  # it brings numpy
    from hpcdet.policy.compiled import PolicyText

DEFAULT = "default"
_FREE = ("hyperparameters", "data", "options")  # the user's own keys; null means null there
_MOUNTS = "bind_mounts"
NULL_SAYS = ("searcher.promotion_share", "resources.regrow_min_s")
"""Keys of ours for which null is another value than their default."""


class SiteDefaults(Protocol):
    """Defaults for configs from a site."""

    @property
    def name(self) -> str: ...

    @property
    def config(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class LoadedConfig:
    """A checked config.

    Attributes:
        config: with literal secrets taken out and everything derived filled in.
        origins: dotted key to where its value comes from: ``FILE:LINE``, ``--set KEY``,
            ``site NAME``, ``default``, ``derived``, ``generated``.
        warnings: for people; each names its key.
        secrets: literal ``data.secrets`` by name, those of ``notify.webhook`` and
            ``checkpoint_storage`` by key. Keep them out of everything else.
        policy: the one that ``governance.policy`` names; None without one.
        registry: the user by whom images are fetched; no record has it.
        images: by the image's name, what it is (``jobs.create.images``).
        sources: the files that it was read from, the one that wins last.
    """

    config: Resolved
    origins: Mapping[str, str]
    warnings: Sequence[str] = ()
    secrets: Mapping[str, Any] = field(default_factory=dict, repr=False)
    policy: PolicyText | None = None
    registry: RegistryUser | None = field(default=None, repr=False)
    images: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    sources: Sequence[str] = ()

    def resolved(self) -> dict[str, Any]:
        """Return ``experiment.yaml`` as plain data."""
        return dict(self.config.raw)

    def with_value(self, key: str, value: Any, origin: str) -> LoadedConfig:
        """Return the config with one value (of a dotted key) that is known only now."""
        config = overrides.lay(self.config, {key: value})
        return replace(self, config=config, origins={**self.origins, key: origin})


def load(
    file: Path,
    sets: Sequence[str] = (),
    site: SiteDefaults | None = None,
    template: Path | None = None,
    ignored: Container[str] = (),
) -> LoadedConfig:
    """Read and check an experiment's config, as ``check`` does."""
    return check(yaml12.read(file), sets, site, template, ignored)


def check(
    document: Document,
    sets: Sequence[str] = (),
    site: SiteDefaults | None = None,
    template: Path | None = None,
    ignored: Container[str] = (),
) -> LoadedConfig:
    """Check an experiment's config and fill in what it leaves open.

    Later layers win: defaults, the site's ``config``, ``template``, ``document``, ``sets``.

    Args:
        sets: assignments ``key.path=value``, the values as YAML.
        ignored: keys of Determined that would be refused, and are to count for nothing; those of
            ``foreign.IGNORABLE``.

    Raises:
        ConfigError: with every problem found, each with its key and line.
        UsageError: an assignment is not of that form.
    """
    layered = Layered()
    if site is not None and site.config:
        layered.lay(Document(f"site {site.name}", site.config))
    if template is not None:
        layered.lay(yaml12.read(template))
    layered.lay(document)
    for assignment in sets:
        layered.set(assignment)
    name = Path(document.source).stem
    found = _check(layered, document.source, name, site.name if site else None, ignored)
    return replace(found, sources=[*([str(template)] if template else []), document.source])


def _check(
    layered: Layered, source: str, name: str, site: str | None, ignored: Container[str]
) -> LoadedConfig:
    values, origins = _without_null(layered.values), dict(layered.origins)
    values.pop("schema", None)  # a resolved config is a config
    wrong: list[Problem] = []
    doubts: list[Problem] = []
    registry, of_image = image_settings.separate(values, ignored)
    theirs = [
        *of_image,
        *_foreign(values, ignored),
        *foreign_shapes.rewrite(values),
        *entrypoints.rewrite(values),
    ]
    for problem, is_error in theirs:
        (wrong if is_error else doubts).append(problem)
    data = values.get("data")
    literals: dict[str, Any] = {}
    if isinstance(data, dict):
        values["data"], literals, found = secrets.separate(data)
        wrong += found
    notify = values.get("notify")
    if isinstance(notify, dict):
        values["notify"], hooks, found = secrets.separate_webhook(notify)
        literals |= hooks
        wrong += found
    storage = values.get(STORAGE)
    if isinstance(storage, dict):
        values[STORAGE], others, found = secrets.separate_storage(storage)
        literals |= others
        wrong += found
    wrong += governance.problems(values, source)
    try:
        config = completed(values)
    except ValidationError as error:
        wrong += [
            problem
            for problem in problems.of_validation(error, values)
            if problem.key not in {other.key for other in wrong}
        ]
        raise problems.failure(wrong, origins, source) from None
    if not wrong:
        wrong += [*key_consistency.errors(config), *entrypoints.errors(config)]
        wrong += search_methods.of_new(config.searcher)
    if wrong:
        raise problems.failure(wrong, origins, source)
    derived = [key for key in DERIVED if _is_absent(key, values)]
    config = _fill(config, derived, origins, name, site)
    doubts += key_consistency.warnings(config)
    written = layered.values
    if theirs or foreign_shapes.is_determineds(written):
        doubts += [*entrypoints.doubts(config, written), *search_methods.doubts(config, written)]
    warnings = [
        f"{problems.locate(doubt.key, origins) or source}: {doubt.key}: {doubt.what}"
        for doubt in doubts
    ]
    for key in problems.all_keys():
        if problems.model_at(key) is None and not problems.locate_below(key, origins):
            origins[key] = DEFAULT
    return LoadedConfig(config, origins, warnings, literals, registry=registry)


def _is_absent(key: str, values: Mapping[str, Any]) -> bool:
    section, _, name = key.partition(".")
    return name not in values.get(section, {})


def _without_null(values: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return a copy without keys that are null: as in Determined, they take their default."""
    return {
        name: _without_null(value, f"{above}{name}.")
        if isinstance(value, dict) and name not in _FREE
        else value
        for name, value in values.items()
        if value is not None or f"{above}{name}" in NULL_SAYS
    }


def _has_image(values: Mapping[str, Any]) -> bool:
    section = values.get("environment")
    return isinstance(section, Mapping) and section.get("image") is not None


def _foreign(values: dict[str, Any], ignored: Container[str]) -> list[tuple[Problem, bool]]:
    """Remove keys that only Determined has; return a problem for each, True for an error."""
    found = []
    for key in unsupported_keys.KEYS:
        *above, name = key.split(".")
        place: Any = values
        for part in above:
            place = place.get(part) if isinstance(place, dict) else None
        if not isinstance(place, dict) or name not in place:
            continue
        if key == _MOUNTS and key not in ignored and _has_image(values):
            continue
        entry = unsupported_keys.verdict(key, place[name])
        if entry is None:
            continue
        value = place.pop(name)
        if entry.kind == "harmless" or (entry.ignorable and key in ignored):
            found.append((Problem(key, f"has no effect: {entry.reason}"), False))
        else:
            found.append((Problem(key, entry.reason, entry.hint(value)), True))
    for key, reason in unsupported_keys.WITHOUT_EFFECT.items():
        section, _, name = key.rpartition(".")
        place = values.get(section) if section else values
        if isinstance(place, dict) and name in place and place[name] != problems.default(key):
            found.append((Problem(key, f"has no effect: {reason}"), False))
    return found


def _fill(
    config: Resolved, derived: Collection[str], origins: dict[str, str], name: str, site: str | None
) -> Resolved:
    """Fill in the values that follow from others: ``derived``, and those with a default as well."""
    need, wanted = config.resources, config.reproducibility
    filled: dict[str, Any] = {}
    if not config.name:
        filled["name"] = name
    if config.site is None and site is not None:
        filled["site"] = site
    if wanted.elastic is not None and wanted.virtual_ranks is None:
        filled["reproducibility.virtual_ranks"] = need.slots_per_trial
    if "resources.slots_per_node" in derived:
        filled["resources.slots_per_node"] = need.slots_per_trial // need.nodes
    if "searcher.max_trials" in derived:
        filled["searcher.max_trials"] = search_methods.trials(config)
    origins |= dict.fromkeys(filled, "derived")
    if SEED in derived:
        filled[SEED] = randomness.randbelow(2**31)
        origins[SEED] = "generated"
    return overrides.lay(config, filled)
