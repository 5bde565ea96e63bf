"""Versions of models as the verbs print them: lists, order, conditions, and the best."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from hpcdet.errors import HpcdetError, NotFound, UsageError
from hpcdet.read.experiment import series
from hpcdet.read.views import items
from hpcdet.registry import registered_models
from hpcdet.registry.registered_models import Note, RegisteredModel, Version
from hpcdet.store.fs import yaml12

_DOWN = "-"


@dataclass(frozen=True)
class VersionView:
    """A version of a registered model."""

    id: str
    """The version, as ``model:NAME:3``."""
    model: str
    """The model's name."""
    version: int
    """The version's number."""
    semantic: str
    """Its semantic version; "" without one."""
    aliases: list[str]
    """Its aliases."""
    labels: list[str]
    """Labels of the model, then those of the version."""
    notes: list[Note]
    """Notes on the model and on the version, in the order written."""
    experiment: str
    """Id of the experiment it was trained in, which may be gone."""
    trial: int
    """The trial's number."""
    step: int
    """Batches the trial had trained."""
    digest: str
    """Digest of the training state."""
    bytes: int
    """Size of the checkpoint's files."""
    metrics: dict[str, Any]
    """Last value of each validation metric at or before the checkpoint."""
    hyperparameters: dict[str, Any]
    """Hyperparameters of the trial."""
    capsule: dict[str, Any]
    """What is needed to train it again: `commit`, versions, and BLAKE3 of config, code and
    provenance, which lie beside the checkpoint."""
    governance: dict[str, Any]
    """What the policy has recorded: `policy_digest`, `exposure` of `sources` by `layers`, the
    `ledger`'s head; empty without a policy."""
    state: Literal["active", "archived", "removed"]
    """``archived``: hidden from lists and ranges. ``removed``: as a verb has left it."""
    created: str
    """When it was added."""
    by: str
    """Who added it."""
    path: str
    """The checkpoint's folder."""


@dataclass(frozen=True)
class Listing:
    """Versions, and a warning for each that cannot be read."""

    items: list[VersionView]
    warnings: list[str]


@dataclass(frozen=True)
class Condition:
    """A condition ``KEY=VALUE``.

    The key is one of the item, or of a hyperparameter, metric or part of the capsule
    (``optimizer.lr``); lists (``labels``, ``aliases``) have to hold the value.

    Attributes:
        plain: the value as it was given.
    """

    key: str
    value: Any
    plain: str

    @staticmethod
    def of(text: str) -> Condition:
        """Return it. Raises UsageError: it is none."""
        key, sign, plain = text.partition("=")
        if not sign or not key:
            raise UsageError("it is no condition", where=f"--where {text}", hint="KEY=VALUE")
        try:
            return Condition(key, yaml12.scalar(plain), plain)
        except (yaml.YAMLError, ValueError):
            return Condition(key, plain, plain)

    def fits(self, row: VersionView) -> bool:
        """True if the version has that value."""
        found = _value(row, self.key)
        if isinstance(found, list):
            return self.plain in found
        return found is not _NONE and (_same(found, self.value) or found == self.plain)


def view(of: Version) -> VersionView:
    """Return a version as it is printed. Raises IntegrityError: its record is damaged."""
    record, standing, model = of.record, of.standing, of.model
    hidden = standing.archived or model.archived
    return VersionView(
        of.name,
        model.name,
        of.number,
        standing.semantic.text if standing.semantic else "",
        model.aliases_of(of.number),
        list(dict.fromkeys([*model.labels, *standing.labels])),
        [note for note in model.notes if note.version in (0, of.number)],
        record.experiment,
        record.trial,
        record.step,
        record.digest,
        record.bytes,
        record.metrics,
        record.hyperparameters,
        record.capsule,
        record.governance,
        "removed" if standing.removed else "archived" if hidden else "active",
        standing.at,
        standing.by,
        str(of.checkpoint),
    )


def versions(registry: Path, name: str, archived: bool = True) -> Listing:
    """Return the versions of a model, the oldest first; damaged ones are warned of.

    Raises:
        NotFound, IntegrityError, Unavailable: as ``registered_models.model``.
    """
    return _listed(registered_models.model(registry, name), archived)


def newest(registry: Path, archived: bool = False, conditions: Sequence[Condition] = ()) -> Listing:
    """Return the newest version of each model that fits, by the models' names.

    Raises:
        UsageError: as ``fitting``.
    """
    found: list[VersionView] = []
    warnings: list[str] = []
    for name in registered_models.names(registry):
        try:
            listed = versions(registry, name, archived)
        except NotFound:
            continue  # all of its versions were removed, or none was completed
        except HpcdetError as error:
            warnings.append(_left_out(name, error))
            continue
        warnings += listed.warnings
        found += listed.items
    by_model = {row.model: row for row in fitting(found, conditions)}
    return Listing([*by_model.values()], warnings)


def _listed(model: RegisteredModel, archived: bool) -> Listing:
    found: list[VersionView] = []
    warnings: list[str] = []
    for one in registered_models.versions(model):
        if archived or not (one.standing.archived or model.archived):
            try:
                found.append(view(one))
            except (HpcdetError, OSError) as error:
                warnings.append(_left_out(f"{model.name}:{one.number}", error))
    return Listing(found, warnings)


def _left_out(name: str, error: HpcdetError | OSError) -> str:
    what = error.what if isinstance(error, HpcdetError) else error.strerror or str(error)
    where = error.where if isinstance(error, HpcdetError) else str(error.filename or "")
    return f"{name} is left out: {where}: {what}"


def fitting(rows: Sequence[VersionView], conditions: Sequence[Condition]) -> list[VersionView]:
    """Return the versions that all conditions fit.

    Raises:
        UsageError: no version has a key that is asked for.
    """
    for one in conditions:
        if rows and all(_value(row, one.key) is _NONE for row in rows):
            raise _no_value(one.key, "--where", rows)
    return [row for row in rows if all(one.fits(row) for one in conditions)]


_NONE = object()


def _same(one: Any, other: Any) -> bool:
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _value(row: VersionView, key: str) -> Any:
    """Return the value of a key of an item; ``_NONE`` if it has none."""
    for part in (items.encode(row), row.hyperparameters, row.metrics, row.capsule):
        found = _within(part, key)
        if found is not _NONE:
            return found
    return _NONE


def _within(tree: Any, key: str) -> Any:
    if not isinstance(tree, dict):
        return _NONE
    if key in tree:
        return tree[key]
    first, dot, rest = key.partition(".")
    return _within(tree.get(first), rest) if dot else _NONE


def ordered(rows: Iterable[VersionView], key: str) -> list[VersionView]:
    """Return versions by a metric, hyperparameter or key of the item; ``-KEY``: downwards.

    Those without a value come last.

    Raises:
        UsageError: no version has such a key.
    """
    rows = list(rows)
    name = key.removeprefix(_DOWN)
    values = [(_value(row, name), row) for row in rows]
    has = [(_order(one), row) for one, row in values if one not in (_NONE, None, "NaN")]
    if rows and not has:
        raise _no_value(name, "--sort", rows)
    has.sort(key=lambda pair: pair[0], reverse=key.startswith(_DOWN))
    without = [row for one, row in values if one in (_NONE, None, "NaN")]
    return [*(row for _, row in has), *without]


def _order(value: Any) -> tuple[bool, float, str]:
    """Return the key that values are ordered by: numbers, then texts."""
    number = series.number(value)
    return (False, number, "") if number is not None else (True, 0.0, items.text(value))


def _no_value(key: str, where: str, rows: Sequence[VersionView]) -> UsageError:
    known = sorted({name for row in rows for name in (*row.metrics, *row.hyperparameters)})
    hint = f"there are: {', '.join(known) or 'none'}; or a key of -o json"
    return UsageError(f"no version has a value of {key}", where=where, hint=hint)


def best(
    registry: Path, name: str, metric: str = "", smaller: bool | None = None
) -> tuple[Version, float]:
    """Return the best version of a model, and its value.

    Args:
        metric: "": that of the searches of its versions.
        smaller: smaller values are better; None: as the searches had it, of which the metric has
            to be theirs.

    Raises:
        NotFound: no version has a value of the metric.
        UsageError: metric or order are not known.
        IntegrityError: a record is damaged.
    """
    model = registered_models.model(registry, name)
    hidden = model.archived
    there = [one for one in registered_models.versions(model) if not one.standing.archived]
    metrics = {one.record.metric for one in there}
    if not metric:
        if len(metrics) != 1:
            what = "its versions are of searches with several metrics" if metrics else ""
            hint = f"--metric {'|'.join(sorted(metrics))}"
            raise UsageError(what or "no version is active", where=f"model:{name}", hint=hint)
        [metric] = metrics
    if smaller is None:
        orders = {one.record.smaller_is_better for one in there if one.record.metric == metric}
        if len(orders) != 1:
            hint = "say what is better: --smaller or --larger"
            raise UsageError(f"the order of {metric} is not recorded", where="--metric", hint=hint)
        [smaller] = orders
    values = [(series.number(one.record.metrics.get(metric)), one) for one in there]
    known = [(value, one) for value, one in values if value is not None]
    if not known or hidden:
        names = sorted({key for one in there for key in one.record.metrics})
        hint = f"metrics of its versions: {', '.join(names) or 'none'}"
        what = "the model is archived" if hidden else f"no version has a value of {metric}"
        raise NotFound(what, where=f"model:{name}", hint=hint)
    pick = min if smaller else max
    value, found = pick(known, key=lambda pair: pair[0])
    return found, value
