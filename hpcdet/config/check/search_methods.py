"""Search methods: the keys that each takes, and the number of trials that some determine.

A key that the method would ignore is refused, since its author expects an effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hpcdet.config.check.problems import Problem
from hpcdet.config.check.section_models import completed
from hpcdet.rungs import hyperband
from hpcdet.space.space import Space
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.config.sections.searcher_keys import COPYING, HALVING, MODELLED, WHOLE, Searcher

_DEFAULTS = completed({"entrypoint": "true"}).searcher
_COMPARED = tuple(name for name in HALVING if name not in WHOLE)
_LEARNING = ("random", *HALVING, *COPYING)

EVERY = (
    "name",
    "metric",
    "smaller_is_better",
    "objectives",
    "constraints",
    "max_length",
    "max_trials",
    "max_concurrent_trials",
    "sampler",
    "begin_from",
    "begin_at",
    "stopping",
    "stopping_version",
    "rule_version",
)
"""Keys that mean something to each method, or whose values are checked by what they say."""

TAKE: dict[str, tuple[str, ...]] = {
    "max_time": HALVING,
    "time_metric": HALVING,
    "rule": _COMPARED,
    "promotion_share": _COMPARED,
    "divisor": _COMPARED,
    "num_rungs": ("async_halving", "asha", "pasha"),
    "max_rungs": ("adaptive_asha", "hyperband", "bohb"),
    "mode": ("adaptive_asha",),
    "bracket_rungs": ("adaptive_asha",),
    "population_size": COPYING,
    "perturbation_interval": COPYING,
    "quantile": COPYING,
    "resample_probability": COPYING,
    "factors": COPYING,
    "synchronous": COPYING,
    "schedule": ("schedule",),
    "initial": _LEARNING,
    "warm_start": _LEARNING,
    "wait_at_rungs_s": (*_COMPARED, *COPYING),
    "program": ("custom",),
    "options": ("custom",),
    "answer_within_s": ("custom",),
}
"""All other keys of ``searcher``, and the methods that take them."""


def problems(asked: Searcher) -> Iterator[Problem]:
    """Yield keys that this method would ignore."""
    for option, names in TAKE.items():
        if asked.name not in names and _said(asked, option):
            what = f"a search of name: {asked.name} has no {option}"
            hint = f"leave it out, or use name: {' | '.join(names)}"
            yield Problem(f"searcher.{option}", what, hint)
    if asked.name in _COMPARED and asked.rule != "hybrid" and _said(asked, "promotion_share"):
        what = f"rule: {asked.rule} promotes without it"
        if asked.rule == "stopping":
            what = "rule: stopping promotes no trial"
        yield Problem("searcher.promotion_share", what, "leave it out, or use rule: hybrid")
    for other in ("mode", "max_rungs") if asked.bracket_rungs else ():
        if asked.name == "adaptive_asha" and _said(asked, other):
            what = f"bracket_rungs says which brackets there are, and so does {other}"
            yield Problem(f"searcher.{other}", what, "keep one of them")


def of_new(asked: Searcher) -> Iterator[Problem]:
    """Yield values that a new search does not take; those that began with them keep them."""
    sampler = asked.sampler.name or MODELLED.get(asked.name, "random")
    modelled = asked.name in _COMPARED and asked.rule == "hybrid" and sampler != "random"
    if modelled and asked.rule_version == 5 and _said(asked, "promotion_share"):
        what = f"with the sampler {sampler}, rule_version: 5 keeps its own pace"
        hint = "leave it out, or use rule_version: 6 or the sampler random"
        yield Problem("searcher.promotion_share", what, hint)
    if asked.stopping_version == 1:
        what = "rules of version 1 are those of experiments that began with them"
        yield Problem("searcher.stopping_version", what, "leave it out")


def doubts(config: Resolved, written: Mapping[str, Any]) -> Iterator[Problem]:
    """Defaults of a search that decide otherwise than Determined's."""
    searcher = written.get("searcher")
    said = isinstance(searcher, Mapping) and {"rule", "stop_once"} & searcher.keys()
    if config.searcher.name in _COMPARED and config.searcher.rule == "hybrid" and not said:
        what = "hybrid by default, which also promotes; rule: stopping is Determined 0.38's"
        yield Problem("searcher.rule", what)


def _said(asked: Searcher, option: str) -> bool:
    """True if a key has another value than its default, which resolved configs hold as well."""
    return bool(getattr(asked, option) != getattr(_DEFAULTS, option))


def trials(config: Resolved) -> int:
    """Return the number of trials of a search without ``max_trials``.

    Raises:
        SpaceError: the space of a grid is wrong.
    """
    match config.searcher.name:
        case "grid":
            return len(Space(config.hyperparameters).grid())
        case "hyperband" | "bohb":
            asked = config.searcher
            brackets = hyperband(asked.top or 1, asked.divisor, asked.max_rungs, None, 1)
            return sum(bracket.trials for bracket in brackets)
        case "pbt" | "pb2":
            return config.searcher.population_size or 1
        case "schedule":
            return max(len(config.searcher.schedule.steps), 1)
    return 1
