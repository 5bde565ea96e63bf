"""The record of its policy in a checkpoint, from the manifest alone."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcdet.errors import IntegrityError
from hpcdet.policy.compiled import CompiledPolicy
from hpcdet.store.folder.layout import CHECKPOINT_NAME
from hpcdet.store.trials import manifests
from hpcdet.store.trials.standing import latest_checkpoint

if TYPE_CHECKING:  # other verbs on policies need no journals
    from hpcdet.read.experiment.gather import GatheredTrial

_KNOWN = frozenset(
    {
        *("policy_digest", "assurance", "sources", "layers", "exposure", "rows", "dropped"),
        *("complete", "parameters", "coverage", "chains"),
    }
)


@dataclass(frozen=True)
class GovernedCheckpoint:
    """The account of a checkpoint, made by its trial; whatever has another form counts as absent.

    Attributes:
        name: of its folder; "" if the trial has none.
        step: batches trained.
        policy_digest: of the policy that it was saved under.
        folder: where it was read.
        sources: the policy's, and behind them others that its parents were trained on.
        exposure: rows times weight, by source and layer, as the policy orders them.
        rows: trained, by source; ``a+b`` of several. ``dropped``: of unknown sources.
        complete: the history of the weights is known.
        parameters: how many, by layer of the model.
        coverage: of each layer, in [0, 1] or None; None where chains were not verified.
        chains: sources whose chains were verified, and what was found of each.
        others: what else it records: spectral entropies, statements of nodes, the ledger's head.
    """

    name: str
    step: int
    sources: list[str]
    exposure: list[list[float]]
    rows: dict[str, int] = field(default_factory=dict)
    dropped: int = 0
    complete: bool = True
    parameters: dict[str, int] = field(default_factory=dict)
    coverage: list[float | None] | None = None
    chains: list[Any] = field(default_factory=list)
    others: dict[str, Any] = field(default_factory=dict)
    policy_digest: str = ""
    folder: Path | None = None

    @property
    def attempt(self) -> int:
        """The attempt that saved it; 0: its parent, or none."""
        named = CHECKPOINT_NAME.fullmatch(self.name)
        return int(named[2]) if named else 0


def read(trial: GatheredTrial, policy: CompiledPolicy, name: str = "") -> GovernedCheckpoint:
    """Return the account of a trial's checkpoint; an empty one if it has none.

    Args:
        name: of the checkpoint; "": the latest.
    """
    name = name or latest_checkpoint(trial.paths)
    for place in trial.paths.checkpoint_places if name else ():
        with contextlib.suppress(IntegrityError, OSError):
            meta = manifests.read(place / name)["meta"]
            said = meta.get("governance")
            found = said if isinstance(said, Mapping) else {}
            made = _account(name, int(meta.get("batches", 0)), found, policy)
            return replace(made, folder=place / name)
    return GovernedCheckpoint("", 0, *_nothing(policy))


def _nothing(policy: CompiledPolicy) -> tuple[list[str], list[list[float]]]:
    return list(policy.codes), [[0.0] * len(policy.layers) for _ in policy.sources]


def _account(
    name: str,
    step: int,
    said: Mapping[str, Any],
    policy: CompiledPolicy,
) -> GovernedCheckpoint:
    layers, known = [one.id for one in policy.layers], list(policy.codes)
    sources: Any = said.get("sources")
    exposure: Any = said.get("exposure")
    if (
        said.get("layers") != layers
        or not _is_names(sources)
        or sources[: len(known)] != known
        or not _is_matrix(exposure, len(sources), len(layers))
    ):
        sources, exposure = _nothing(policy)
    dropped = said.get("dropped")
    return GovernedCheckpoint(
        name,
        step,
        sources,
        exposure,
        {str(kind): n for kind, n in _mapping(said.get("rows")).items() if isinstance(n, int)},
        dropped if isinstance(dropped, int) else 0,
        said.get("complete") is True,
        {str(layer): n for layer, n in _mapping(said.get("parameters")).items() if _is_count(n)},
        _of_layers(said.get("coverage"), layers),
        list(said["chains"]) if isinstance(said.get("chains"), list) else [],
        {str(key): one for key, one in said.items() if key not in _KNOWN},
        str(said.get("policy_digest") or ""),
    )


def _of_layers(given: Any, layers: list[str]) -> list[float | None] | None:
    """A value of each layer, or None if they are not there."""
    if isinstance(given, Mapping):
        given = given.get("layers")
    if not isinstance(given, list) or len(given) != len(layers):
        return None
    return [float(one) if _is_number(one) else None for one in given]


def _mapping(given: Any) -> Mapping[Any, Any]:
    return given if isinstance(given, Mapping) else {}


def _is_names(given: Any) -> bool:
    return (
        isinstance(given, list)
        and all(isinstance(one, str) for one in given)
        and len(set(given)) == len(given)
    )


def _is_matrix(given: Any, rows: int, columns: int) -> bool:
    return (
        isinstance(given, list)
        and len(given) == rows
        and all(isinstance(row, list) and len(row) == columns for row in given)
        and all(_is_number(one) for row in given for one in row)
    )


def _is_count(given: Any) -> bool:
    return isinstance(given, int) and given > 0


def _is_number(given: Any) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool)
