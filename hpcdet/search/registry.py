"""From a resolved config to its searcher."""

from __future__ import annotations

from hpcdet.errors import ConfigError
from hpcdet.search import asha_promotion, asha_stopping, hybrid
from hpcdet.search.api import Searcher
from hpcdet.search.grid import Points
from hpcdet.search.halving import Halving, Rule
from hpcdet.search.pasha import Pasha
from hpcdet.search.random import Random
from hpcdet.search.sampling import Independent
from hpcdet.space.errors import SpaceError, dotted
from hpcdet.space.space import Space
from hpcdet.store.config import HALVING, Resolved

NAMES = ("single", "random", "grid", *HALVING)
RULES: dict[str, Rule] = {
    rule.NAME: rule.verdict for rule in (hybrid, asha_stopping, asha_promotion)
}


def searcher(resolved: Resolved) -> Searcher:
    """The search method that the config names.

    Raises:
        ConfigError: there is no such searcher, or the search space is wrong.
    """
    asked = resolved.searcher
    seed = resolved.reproducibility.experiment_seed
    concurrent = asked.max_concurrent_trials
    if asked.name not in NAMES:
        raise ConfigError(
            f"there is no searcher {asked.name!r}",
            where="searcher.name",
            hint=f"searchers: {', '.join(NAMES)}",
        )
    try:
        space = Space(resolved.hyperparameters)
        points = space.grid() if asked.name == "grid" else []
    except SpaceError as error:
        where = f"hyperparameters.{dotted(error.path)}".rstrip(".")
        raise ConfigError(error.what, where=where, hint=error.hint) from error
    sampler = Independent(space, seed)
    match asked.name:
        case "grid":
            grid, length = Points(points), asked.max_length
            return Random(grid, seed, length, len(points), concurrent, "grid", replaces=False)
        case "single":
            return Random(sampler, seed, asked.max_length, 1, 1, name="single")
        case "random":
            return Random(sampler, seed, asked.max_length, asked.max_trials, concurrent)
    return (Pasha if asked.name == "pasha" else Halving)(
        name=asked.name,
        rule=RULES[asked.rule],
        brackets=asked.brackets,
        divisor=asked.divisor,
        sampler=sampler,
        seed=seed,
        until=asked.max_length,
        max_concurrent=concurrent,
        metric=asked.metric,
        smaller_is_better=asked.smaller_is_better,
        time_metric=asked.time_metric or "",
    )
