"""The facts of an experiment or trial that comparisons are about, by what they concern."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from hpcdet.read.experiment import changes, series
from hpcdet.read.experiment.gather import Gathered, gather
from hpcdet.read.lookup.find import Reference
from hpcdet.read.views.items import set_to, text
from hpcdet.read.views.list_rows import TrialStatusView
from hpcdet.read.views.trials import FingerprintView, fingerprints
from hpcdet.read.views.views import status

What = Literal["metric", "data", "hyperparameters", "code", "libraries", "config", "resources"]
WHATS: tuple[What, ...] = get_args(What)

_SET: tuple[What, ...] = ("hyperparameters", "config")
_VERSIONS = ("hpcdet", "python", "torch", "numpy", "cuda", "cudnn", "blas", "torch_blas")
_SOFTWARE = (*_VERSIONS, "modules", "image")
_SWITCHES = ("deterministic", "matmul_precision")
"""Of torch; and all that begin with ``cudnn_``."""
_TOLD_BETTER = ("code", "data", "packages")
"""Digests of what is compared file by file, and package by package."""
_ELSEWHERE = ("hyperparameters", "data", "resources")


@dataclass(frozen=True)
class Facts:
    """The facts of one experiment or trial.

    Attributes:
        name: its id, as ``digits-7f3a`` or ``digits-7f3a/3``.
        trial: the trial that metrics, hyperparameters and environment are of: the one named, else
            the best, else the only one; 0 for none.
        of: values by name, for each of ``WHATS``; names of nested values have dots.
        warnings: what is not known of it.
    """

    name: str
    gathered: Gathered
    trial: int
    of: Mapping[What, Mapping[str, Any]]
    warnings: list[str] = field(default_factory=list)


def shown(what: What, value: Any) -> str:
    """Format a fact for a table; one of a config as ``--set KEY=VALUE`` takes it."""
    return set_to(value) if what in _SET else text(value)


def collect(found: Reference, name: str = "", gathered: Gathered | None = None) -> Facts:
    """Return the facts of an experiment or trial, under its id or another name.

    Args:
        gathered: the contents of its folder, where they are known.
    """
    gathered = gathered or gather(found.paths)
    name = name or str(Reference(found.paths, found.trial))
    view = status(gathered)
    best = view.best.trial if view.best else 0
    only = view.trials[0].trial if len(view.trials) == 1 else 0
    number = found.trial or best or only
    row = next((one for one in view.trials if one.trial == number), None)
    config = changes.effective(gathered).raw
    of: dict[What, dict[str, Any]] = {
        "metric": _metrics(gathered, row) if row else {},
        "data": _data(gathered, config),
        "hyperparameters": flat(row.hyperparameters if row else config.get("hyperparameters", {})),
        "code": dict(mapping(gathered.provenance.get("code"))),
        "libraries": {},
        "config": flat({key: value for key, value in config.items() if key not in _ELSEWHERE}),
        "resources": flat(mapping(config.get("resources"))),
    }
    if row and row.seed is not None:
        of["config"]["trial_seed"] = row.seed
    warnings = []
    if (ran := _environment(gathered, number)) is not None:
        _add_environment(of, ran)
    else:
        _add_submission(of, gathered.provenance)
        warnings.append(f"{name}: no environment of an attempt is recorded; that of its submission")
    return Facts(name, gathered, number, of, warnings)


def flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return nested values under names with dots; lists and empty maps are values."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{before}{key}.")
        else:
            found[f"{before}{key}"] = value
    return found


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a map as it is, and an empty one for anything else (records of others)."""
    return value if isinstance(value, Mapping) else {}


def _metrics(gathered: Gathered, row: TrialStatusView) -> dict[str, Any]:
    """Return a trial's validation metrics at its best report, else the last ones.

    The searcher's metric comes first; ``steps`` is how far the trial was trained.
    """
    rows = series.metrics(gathered, trial=row.trial, group="validation")
    if row.best_step is not None:
        rows = [one for one in rows if one["step"] == row.best_step]
    else:
        rows = series.last(rows)
    first = gathered.config.searcher.metric
    found = {one["name"]: one["value"] for one in rows}
    leading = {first: found[first]} if first in found else {}
    return {**leading, **found, "steps": row.steps}


def _data(gathered: Gathered, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the digest of each of ``data.paths``, and the other keys of ``data`` in the config."""
    found = {str(one.get("given")): one.get("digest") for one in data_entries(gathered)}
    said = flat(mapping(config.get("data")))
    return found | {f"data.{key}": value for key, value in said.items() if key != "paths"}


def data_entries(gathered: Gathered) -> Iterator[Mapping[str, Any]]:
    """Yield the provenance's entries of ``data.paths``."""
    entries = gathered.provenance.get("data")
    yield from map(mapping, entries if isinstance(entries, list) else [])


def _environment(gathered: Gathered, trial: int) -> FingerprintView | None:
    """Return the environment of the newest attempt of a trial, or of any; None without one."""
    known = fingerprints(gathered, trial)
    if trial:
        return max(known, key=_last, default=None)
    return known[-1] if known else None


def _last(one: FingerprintView) -> int:
    """Return the number of the last attempt, of one trial, that ran in an environment."""
    return max(int(name.partition(".")[2]) for name in one.attempts)


def _add_environment(of: dict[What, dict[str, Any]], ran: FingerprintView) -> None:
    of["libraries"] |= dict(ran.packages)
    for name, value in ran.parts.items():
        if name in _SOFTWARE:
            of["libraries"][name] = value
        elif name in _SWITCHES or name.startswith("cudnn_"):
            of["config"][f"torch.{name}"] = value
        elif name not in _TOLD_BETTER:
            of["resources"][name] = value
    of["resources"] |= {f"threads.{name}": value for name, value in ran.threads.items()}


def _add_submission(of: dict[What, dict[str, Any]], record: Mapping[str, Any]) -> None:
    packages = mapping(record.get("packages"))
    versions = {name: record[name] for name in ("hpcdet", "python") if name in record}
    of["libraries"] |= {**packages, **versions}
    of["resources"] |= {name: record[name] for name in ("processor", "cores") if name in record}
    variables = mapping(record.get("variables"))
    of["resources"] |= {f"${name}": value for name, value in variables.items()}
