"""Reach of a source of data: checkpoints, the layers in them, and their heirs."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcdet import units
from hpcdet.errors import IntegrityError, NotFound
from hpcdet.policy.changes.policy_history import PolicyHistory
from hpcdet.read.governed.attested_trials import AttestedTrial, GovernedExperiment
from hpcdet.read.lookup.all_experiments import UNREADABLE, left_out
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import sealed_json
from hpcdet.store.trials import manifests, parents
from hpcdet.store.trials.parents import Parent

if TYPE_CHECKING:  # other verbs on policies need no journals
    from hpcdet.read.experiment.gather import Gathered, GatheredTrial

_WHOLE = ("complete", "superseded")


@dataclass(frozen=True)
class ImpactView:
    """A trial that a source has reached."""

    experiment: str
    """The experiment's id."""
    trial: int
    """The trial's number."""
    checkpoint: str
    """The newest checkpoint that it has reached; its path."""
    layers: list[str]
    """The layers that were exposed to it there, in the order of the policy."""
    last_clean: str
    """The newest checkpoint that was exposed to none of it; its path, "" without any."""
    heirs: list[str]
    """Trials that began from what it has reached, and those that began from them."""
    checkpoints: list[str]
    """All checkpoints that it has reached; their paths."""
    lane_only: bool
    """True if it has reached lanes alone, under assurance `isolated`: without them the model is as
    if it had never been trained on the source."""
    versions: list[str] = field(default_factory=list)
    """Versions of registered models that it has reached, as ``model:NAME:3``."""


@dataclass(frozen=True)
class Impact:
    """The trials that a source has reached, and a warning for each that could not be read."""

    items: list[ImpactView]
    warnings: list[str]


@dataclass(frozen=True)
class _Saved:
    """A checkpoint: its place, the digest of its manifest, and the layers reached in it.

    Attributes:
        known: its weights have a history that is known.
        sources: that it names.
    """

    path: str
    name: str
    root: str
    layers: tuple[str, ...]
    known: bool
    sources: frozenset[str] = frozenset()


@dataclass
class _Trial:
    """A trial, its checkpoints in order, and the one that it began from.

    Attributes:
        origin: root of that checkpoint; ``parent``: its trial and the checkpoint's name.
    """

    experiment: str
    number: int
    saved: list[_Saved]
    lanes: frozenset[str]
    origin: str = ""
    parent: tuple[Path, str] | None = None
    children: list[_Trial] = field(default_factory=list)

    @property
    def called(self) -> str:
        return f"{self.experiment}/{self.number}"

    @property
    def sources(self) -> set[str]:
        return {name for one in self.saved for name in one.sources}

    @property
    def reached(self) -> list[_Saved]:
        return [one for one in self.saved if one.layers]


def impact(
    experiments: Iterable[ExperimentPaths], source: str, others: Iterable[str] = ()
) -> Impact:
    """Return what a source has reached, over experiments.

    Exposure is what checkpoints say of themselves: a layer counts as reached if its exposure to
    the source is above 0. Those that are gone cannot be asked; who began from one is told by its
    own checkpoints, which have its exposure. One that its ledgers do not confirm is warned of.

    Args:
        others: sources that are known from elsewhere.

    Raises:
        NotFound: no policy knows the source, and no checkpoint.
    """
    from hpcdet.read.experiment.gather import gather

    trials: dict[Path, _Trial] = {}
    warnings: list[str] = []
    unread: list[str] = []
    without, known = 0, set(others)
    for paths in experiments:
        try:
            gathered = gather(paths)
            experiment = GovernedExperiment(paths)
            without += experiment.history is None
            known |= _named(experiment.history)
            for one in gathered.trials:
                found = _trial(gathered, one, experiment, source, warnings)
                trials[one.paths.root.resolve()] = found
                known |= found.sources
        except UNREADABLE as error:
            unread.append(left_out(paths, error))
    if source not in known:
        raise _unknown(source, known, unread)
    warnings += unread
    if without:
        said = units.counted(
            without,
            "experiment has no policy: what reached it",
            "experiments have no policy: what reached them",
        )
        warnings.append(f"{said} is not known")
    _join(trials)
    items = [_view(one) for one in trials.values() if one.reached]
    return Impact(items, warnings)


def _named(history: PolicyHistory | None) -> set[str]:
    return set() if history is None else {one.id for one in history.newest.sources}


def _unknown(source: str, known: Iterable[str], unread: list[str]) -> NotFound:
    near = difflib.get_close_matches(source, sorted(known), n=3)
    hint = f"did you mean {', '.join(near)}?" if near else "hpcdet policy show EXP names them"
    what = "no policy and no checkpoint knows this source"
    return NotFound("; ".join([what, *unread]), where=source, hint=hint)


def _lanes(history: PolicyHistory | None) -> frozenset[str]:
    """Return the layers that are lanes of a policy that was isolated at all times."""
    policies = () if history is None else history.policies
    if not policies or any(one.assurance != "isolated" for one in policies):
        return frozenset()
    return frozenset(one.id for one in policies[0].layers if one.lane)


def _trial(
    gathered: Gathered,
    trial: GatheredTrial,
    experiment: GovernedExperiment,
    source: str,
    warnings: list[str],
) -> _Trial:
    from hpcdet.read.views.checkpoints import checkpoints

    saved: list[_Saved] = []
    beside, doubtful = AttestedTrial(experiment, trial.paths), ""
    where = f"{gathered.id}/{trial.number}"
    for row in checkpoints(gathered, trial.number):
        if row.state not in _WHOLE:
            continue
        try:
            saved.append(_saved(Path(row.path), source))
        except (
            IntegrityError,
            AttributeError,
            LookupError,
            OSError,
            TypeError,
            ValueError,
        ) as error:
            what = error.what if isinstance(error, IntegrityError) else "it is damaged"
            warnings.append(f"{where}: {row.name} is left out: {what}")
            continue
        if not doubtful and (doubt := beside.doubt(Path(row.path))):
            doubtful = f"{row.name}: {doubt}"
    unknown = [one.name for one in saved if not one.known]
    if unknown and experiment.history is not None:
        warnings.append(f"{where}: the history of {unknown[0]} is not known")
    if doubtful:
        warnings.append(f"{where}: NOT VERIFIED: {doubtful}")
    found = _Trial(gathered.id, trial.number, saved, _lanes(experiment.history))
    record = trial.record
    if record is None or not record.origin:
        return found
    parent = Parent.parse(record.parent)
    found.origin = record.origin["root"]
    if parent is not None:
        there = parent.paths(gathered.paths)
        found.parent = (there.root.resolve(), record.origin["checkpoint"])
        if parent.experiment == gathered.paths.origin.root.name:  # a copy of the one that was named
            given = parents.given(there)
            found.origin = given["meta"]["linked"]["root"] if given else found.origin
    return found


def _saved(folder: Path, source: str) -> _Saved:
    """Return a checkpoint's exposure to a source.

    Raises:
        IntegrityError: its manifest is not what was written.
    """
    manifest = manifests.read(folder)
    block: Mapping[str, Any] = manifest["meta"].get("governance") or {}
    layers: tuple[str, ...] = ()
    if source in block.get("sources", ()):
        row = block["exposure"][block["sources"].index(source)]
        pairs = zip(block["layers"], row, strict=True)
        layers = tuple(layer for layer, units in pairs if units > 0)
    known, named = bool(block.get("complete")), frozenset(map(str, block.get("sources", ())))
    return _Saved(str(folder), folder.name, manifest[sealed_json.ROOT], layers, known, named)


def _join(trials: Mapping[Path, _Trial]) -> None:
    """Tell each trial which others began from what was reached in it."""
    by_root = {saved.root: one for one in trials.values() for saved in one.saved}
    for child in trials.values():
        place, name = child.parent or (Path(), "")
        parent = by_root.get(child.origin) or trials.get(place)
        if parent is None or parent is child:
            continue
        began = [one for one in parent.saved if child.origin == one.root or name == one.name]
        # without the checkpoint it began from, its own first one tells
        if any(one.layers for one in began or child.saved[:1]):
            parent.children.append(child)


def _heirs(trial: _Trial) -> list[str]:
    found: dict[str, None] = {}
    waiting = list(trial.children)
    while waiting:
        one = waiting.pop(0)
        if one.called not in found:
            found[one.called] = None
            waiting += one.children
    return sorted(found)


def _view(trial: _Trial) -> ImpactView:
    reached = trial.reached
    clean = [one.path for one in trial.saved if one.known and not one.layers]
    return ImpactView(
        trial.experiment,
        trial.number,
        reached[-1].path,
        list(reached[-1].layers),
        clean[-1] if clean else "",
        _heirs(trial),
        [one.path for one in reached],
        all(trial.lanes.issuperset(one.layers) for one in reached),
    )
