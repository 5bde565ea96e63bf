"""Problems of a search space and of the points to try first in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hpcdet.config.check import search_methods
from hpcdet.config.check.problems import Problem
from hpcdet.space.errors import SpaceError, dotted
from hpcdet.space.space import Space
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.config.sections.searcher_keys import COPYING, Searcher


def key(path: tuple[str | int, ...]) -> str:
    """Return the key in the config of a place in the space."""
    return f"hyperparameters.{dotted(path)}".rstrip(".")


def problems(config: Resolved) -> Iterator[Problem]:
    """Yield everything that makes the space or ``searcher.initial`` meaningless."""
    try:
        space = Space(config.hyperparameters)
        if config.searcher.name == "grid":
            points, asked = len(space.grid()), config.searcher.max_trials
            if asked not in (0, points):
                what = f"the grid has {points} points, and as many trials"
                yield Problem("searcher.max_trials", what, "leave it out, or use name: random")
        else:
            space.sample(config.reproducibility.experiment_seed, 1)
            yield from _initial(space, config)
            if config.hyperparameters:  # else a program of the user's said what trials had
                yield from _steps(space, config.searcher)
    except SpaceError as error:
        yield Problem(key(error.path), error.what, error.hint)


def _initial(space: Space, config: Resolved) -> Iterator[Problem]:
    asked = config.searcher
    limit = "population_size" if asked.name in COPYING else "max_trials"
    most = getattr(asked, limit)
    if not most and asked.name in ("hyperband", "bohb"):
        most, limit = search_methods.trials(config), "the brackets"
    if most and len(asked.initial) > most:
        what = f"{len(asked.initial)} points are more than the {most} of {limit}"
        key = "max_trials" if limit == "the brackets" else limit
        yield Problem("searcher.initial", what, f"leave some out, or a greater searcher.{key}")
    for number, point in enumerate(asked.initial):
        try:
            space.completed(point, 0, number + 1)
        except SpaceError as error:
            yield _of_point(f"searcher.initial.{number}", error, error.hint)


def _steps(space: Space, asked: Searcher) -> Iterator[Problem]:
    for number, step in enumerate(asked.schedule.steps if asked.name == "schedule" else ()):
        try:
            space.check(step["hyperparameters"])
        except SpaceError as error:
            hint = error.hint or "a step says all of hyperparameters, as they are there"
            yield _of_point(f"searcher.schedule.steps.{number}.hyperparameters", error, hint)


def _of_point(where: str, error: SpaceError, hint: str) -> Problem:
    """Problems of a point: of one value, or of the whole point by a rule of the space."""
    if error.path[:1] == ("forbid",):
        return Problem(where, error.what, hint, by=key(error.path))
    return Problem(f"{where}.{dotted(error.path)}".rstrip("."), error.what, hint)


def least(spec: Any) -> float | None:
    """Return the smallest value of a numeric hyperparameter, if it is evident."""
    if isinstance(spec, dict):
        vals = spec.get("vals")
        listed = vals if isinstance(vals, list) else []  # if it is not, others say so
        candidates = [spec.get("val"), spec.get("minval"), *listed]
        if spec.get("type") == "log":
            return None
    else:
        candidates = [spec]
    numbers = [n for n in candidates if isinstance(n, int | float) and not isinstance(n, bool)]
    return min(numbers, default=None)
