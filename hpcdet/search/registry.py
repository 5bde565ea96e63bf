"""From a resolved config to its searcher."""

from __future__ import annotations

from hpcdet.errors import ConfigError
from hpcdet.search.api import Searcher
from hpcdet.search.grid import Grid
from hpcdet.search.random import Random
from hpcdet.space.errors import SpaceError, dotted
from hpcdet.space.space import Space
from hpcdet.store.config import Resolved

NAMES = ("single", "random", "grid")


def searcher(resolved: Resolved) -> Searcher:
    """The search method that the config names.

    Raises:
        ConfigError: there is no such searcher, or the search space is wrong.
    """
    asked = resolved.searcher
    seed = resolved.reproducibility.experiment_seed
    concurrent = asked.max_concurrent_trials
    try:
        space = Space(resolved.hyperparameters)
        if asked.name == "grid":
            return Grid(space.grid(), seed, asked.max_length, concurrent)
        if asked.name == "random":
            return Random(space, seed, asked.max_length, asked.max_trials, concurrent)
        if asked.name == "single":
            return Random(space, seed, asked.max_length, 1, 1, name="single")
    except SpaceError as error:
        where = f"hyperparameters.{dotted(error.path)}".rstrip(".")
        raise ConfigError(error.what, where=where, hint=error.hint) from error
    raise ConfigError(
        f"there is no searcher {asked.name!r}",
        where="searcher.name",
        hint=f"searchers: {', '.join(NAMES)}",
    )
