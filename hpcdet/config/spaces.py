"""What is wrong with a search space, and with points that are to be tried first in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hpcdet.config.models import Config
from hpcdet.config.problems import Problem
from hpcdet.space.errors import SpaceError, dotted
from hpcdet.space.space import Space


def key(path: tuple[str | int, ...]) -> str:
    """The key of the config at which a place in the space stands."""
    return f"hyperparameters.{dotted(path)}".rstrip(".")


def problems(config: Config) -> Iterator[Problem]:
    """Everything that makes the space, or ``searcher.initial``, mean nothing."""
    try:
        space = Space(config.hyperparameters)
        if config.searcher.name == "grid":
            points, asked = len(space.grid()), config.searcher.max_trials
            if asked not in (None, points):
                what = f"the grid has {points} points, and as many trials"
                yield Problem("searcher.max_trials", what, "leave it out, or use name: random")
        else:
            space.sample(config.reproducibility.experiment_seed or 0, 1)
            yield from _initial(space, config.searcher.initial)
    except SpaceError as error:
        yield Problem(key(error.path), error.what, error.hint)


def _initial(space: Space, points: list[dict[str, Any]]) -> Iterator[Problem]:
    for number, point in enumerate(points):
        try:
            space.completed(point, 0, number + 1)
        except SpaceError as error:
            where = f"searcher.initial.{number}.{dotted(error.path)}".rstrip(".")
            yield Problem(where, error.what, error.hint)
