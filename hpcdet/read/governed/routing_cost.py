"""The cost of routing: trials of a governed experiment beside those of its control."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpcdet.errors import HpcdetError
from hpcdet.goals import RESERVED
from hpcdet.policy.compiled import CompiledPolicy
from hpcdet.store.folder.layout import ExperimentPaths

if TYPE_CHECKING:  # as governed_trials
    from hpcdet.read.experiment.gather import Gathered, GatheredTrial

_MEMORIZED = tuple(f"{RESERVED}{one}" for one in ("memorization", "advantage.", "exposure."))


@dataclass(frozen=True)
class RoutingCostView:
    """A value with routing, and the same without."""

    what: str
    """A metric of validations, or ``seconds of a step``."""
    step: int
    """Batches trained in both, at a validation; 0 of a mean over all steps."""
    routed: float | None
    """In the experiment under the policy."""
    unrouted: float | None
    """In the control of its ablation."""


def routing_cost(
    control: Gathered, trial: GatheredTrial, policy: CompiledPolicy
) -> list[RoutingCostView]:
    """Compare a trial of a control with that of the same number which was routed.

    Returns:
        At the last validation that both have: the searcher's metric and what tests of memorization
        say; and the time of a step. Empty if the other trial is gone or has other hyperparameters.
    """
    from hpcdet.read.experiment.gather import gather

    paths = ExperimentPaths(control.paths.root.parent / policy.ablates)
    try:
        routed = gather(paths) if paths.config.is_file() else None
    except (HpcdetError, OSError):
        return []
    found = [one for one in routed.trials if one.number == trial.number] if routed else []
    if not found or _parameters(found[0]) != _parameters(trial):
        return []
    return list(_compared(found[0], trial, control.config.searcher.metric))


def _parameters(trial: GatheredTrial) -> Any:
    return trial.record.params if trial.record is not None else None


def _compared(
    routed: GatheredTrial, unrouted: GatheredTrial, metric: str
) -> Iterator[RoutingCostView]:
    from hpcdet.read.experiment import timing

    with_it, without = _validations(routed, metric), _validations(unrouted, metric)
    step = max(with_it.keys() & without.keys(), default=None)
    if step is not None:
        names = sorted(with_it[step].keys() | without[step].keys(), key=lambda one: one != metric)
        for name in names:
            pair = (with_it[step].get(name), without[step].get(name))
            yield RoutingCostView(name, step, *pair)
    times = timing.wall(routed).step_s, timing.wall(unrouted).step_s
    if any(times):
        yield RoutingCostView("seconds of a step", 0, *times)


def _validations(trial: GatheredTrial, metric: str) -> dict[int, dict[str, float | None]]:
    """By step, the searcher's metric and those of twins and canaries."""
    from hpcdet.read.experiment import series

    found: dict[int, dict[str, float | None]] = {}
    for row in series.of_trial(trial):
        name = row["name"]
        wanted = name == metric or name.startswith(_MEMORIZED)
        if row["group"] == "validation" and wanted and not row["superseded"]:
            found.setdefault(row["step"], {})[name] = series.number(row["value"])
    return {step: values for step, values in found.items() if metric in values}
