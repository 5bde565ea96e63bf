"""A search space: its samples, reproducible from a seed, and its grid.

Every hyperparameter draws from a stream of its own: 128 bits of BLAKE2 over (seed, number of
the trial, its path). No draw depends on another or on an order, so adding a hyperparameter
leaves the samples of all others as they were, and trial 700 needs no trial before it.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hpcdet.space import repeats, space_tree
from hpcdet.space.domains import Categorical, Const, Domain, Log
from hpcdet.space.errors import Path, SpaceError, dotted
from hpcdet.space.expression import Expression, Inactive, look_up
from hpcdet.space.language import parse_group
from hpcdet.space.space_tree import Axis, Values

MAX_REDRAWS = 100
MAX_GRID = 100_000
_STREAM = "hpcdet/1"  # names the way bits are made; a change of it changes every search
_BEGIN = f'["{_STREAM}", '
_text = json.JSONEncoder(ensure_ascii=False).encode


def bits(seed: int, trial: int, path: Path, redraw: int = 0) -> int:
    """Return the 128 random bits of one hyperparameter of one trial."""
    name = f"{_BEGIN}{seed}, {trial}, {redraw}{_rest(path)}"
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=16).digest(), "big")


@functools.lru_cache(maxsize=4096)
def _rest(path: Path) -> str:
    """Return the end of the JSON list ``["hpcdet/1", seed, trial, redraw, …]`` for a path."""
    return "".join(f", {_text(part)}" for part in path) + "]"


def trial_seed(seed: int, trial: int) -> int:
    """Return the seed of a trial's own randomness, in [0, 2**31)."""
    return bits(seed, trial, ("", "trial_seed")) >> 97


class Space:
    """The parsed ``hyperparameters`` of a config.

    Attributes:
        warnings: pairs of a path and what looks like a mistake there.

    Raises:
        SpaceError: the space cannot mean what is written.
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        spec = dict(spec)
        forbid = spec.pop("forbid", [])
        if not isinstance(forbid, list):
            raise SpaceError(("forbid",), "forbid is a list of expressions", 'forbid: ["a > b"]')
        self._root = repeats.written_out(parse_group(spec, ()))
        axes = space_tree.ordered(list(space_tree.axes(self._root)))
        self._drawn: list[tuple[Axis, Domain]] = [
            (axis, axis.what) for axis in axes if not isinstance(axis.what, Expression)
        ]
        self._derived = space_tree.computed_in_order(
            [axis for axis in axes if isinstance(axis.what, Expression)]
        )
        self._forbid = [Expression.parse(text, ("forbid", i)) for i, text in enumerate(forbid)]
        self._check_names(space_tree.names(axes))
        # items of one list have one domain, of which it is said once
        written = {id(domain): (axis, domain) for axis, domain in reversed(self._drawn)}.values()
        self.warnings = [
            (axis.at, text) for axis, domain in reversed(written) for text in _doubts(domain)
        ]

    @functools.cached_property
    def selectors(self) -> frozenset[Path]:
        """Paths of the values that determine which others exist."""
        return frozenset(path for axis, _ in self._drawn for path, _ in axis.requires)

    @property
    def constant(self) -> bool:
        """True if every sample is the same."""
        return all(len(domain.points() or [0, 1]) == 1 for _, domain in self._drawn)

    def sample(self, seed: int, trial: int) -> dict[str, Any]:
        """Return the hyperparameters of a trial.

        Raises:
            SpaceError: ``forbid`` refused a hundred draws in a row.
        """
        refused: list[Expression] = []
        for redraw in range(MAX_REDRAWS):
            found = self._chosen(
                lambda axis, domain, n=redraw: domain.draw(bits(seed, trial, axis.path, n))  # type: ignore[misc]
            )
            rule = self._forbidding(found)
            if rule is None:
                return found
            refused.append(rule)
        what = f"{MAX_REDRAWS} samples in a row were forbidden"
        raise _forbidden(refused, what, "the rules leave next to nothing of the space")

    def completed(self, point: Mapping[str, Any], seed: int, trial: int) -> dict[str, Any]:
        """Return a trial's hyperparameters: those of ``point``, the others drawn.

        Raises:
            SpaceError: ``point`` is invalid, or ``forbid`` refused a hundred draws in a row.
        """
        refused: list[Expression] = []
        for redraw in range(MAX_REDRAWS):

            def choose(axis: Axis, domain: Domain, redraw: int = redraw) -> Any:
                try:
                    return _held(axis, domain, look_up(point, axis.path))
                except Inactive:
                    return domain.draw(bits(seed, trial, axis.path, redraw))

            found = self._chosen(choose)
            rule = self._forbidding(found)
            if rule is None:
                _covers(found, point, ())
                return found
            refused.append(rule)
        raise _forbidden(refused, "whatever else is drawn, it is forbidden")

    def check(self, params: Mapping[str, Any]) -> None:
        """Check that these are exactly a sample of this space.

        Raises:
            SpaceError: they are not; where and why.
        """

        def choose(axis: Axis, domain: Domain) -> Any:
            try:
                return _held(axis, domain, look_up(params, axis.path))
            except Inactive as error:
                raise SpaceError(axis.path, "it is missing") from error

        found = self._chosen(choose)
        if rule := self._forbidding(found):
            raise _forbidden([rule], "it is forbidden")
        _covers(found, params, ())

    def build(self, choose: Callable[[Axis, Domain], Any]) -> dict[str, Any] | None:
        """Return the sample with each existing value from ``choose``; None if forbidden.

        It is called in sorted order of the paths, but after the values that existence depends on.
        """
        params = self._chosen(choose)
        return None if self._forbidding(params) else params

    def _chosen(self, choose: Callable[[Axis, Domain], Any]) -> dict[str, Any]:
        """Return the sample as ``build`` does, even a forbidden one."""
        values: Values = {}
        for axis, domain in self._drawn:
            if axis.exists(values):
                values[axis.path] = choose(axis, domain)
        return self._assemble(values)

    def drawn(self, params: Mapping[str, Any]) -> list[tuple[Axis, Domain, Any]]:
        """Return the axes, domains and values from which ``build`` makes a sample, in its order."""
        values: Values = {}
        found = []
        for axis, domain in self._drawn:
            if axis.exists(values):
                values[axis.path] = look_up(params, axis.path)
                found.append((axis, domain, values[axis.path]))
        return found

    @functools.cached_property
    def axes(self) -> list[tuple[Axis, Domain]]:
        """The drawn values that are not constant, in the order of ``drawn``."""
        return [(axis, domain) for axis, domain in self._drawn if not isinstance(domain, Const)]

    @property
    def dimensions(self) -> int:
        """The number of drawn values that are not constant."""
        return len(self.axes)

    @property
    def conditional(self) -> bool:
        """True if some values exist only for certain values of others."""
        return any(axis.requires for axis, _ in self._drawn)

    def grid(self) -> list[dict[str, Any]]:
        """Return every point, without duplicates; the last axis in sorted order varies fastest.

        Raises:
            SpaceError: an axis has no ``count``, nothing is left, or there are too many points.
        """
        axes = []
        for axis, domain in self._drawn:
            points = domain.points()
            if points is None:
                raise SpaceError(axis.at, "a grid needs 'count' here", "count: 5")
            axes.append((axis, points))
        found: dict[str, dict[str, Any]] = {}
        refused: list[Expression] = []
        for visited, values in enumerate(_product(axes, {}, 0)):
            if visited == MAX_GRID:
                raise SpaceError((), f"the grid has more than {MAX_GRID} points", "lower counts")
            params = self._assemble(values)
            if rule := self._forbidding(params):
                refused.append(rule)
            else:
                found.setdefault(json.dumps(params, sort_keys=True, default=str), params)
        if not found:
            raise _forbidden(refused, "every point of the grid is forbidden")
        return list(found.values())

    def _assemble(self, values: Values) -> dict[str, Any]:
        params: dict[str, Any] = space_tree.build(self._root, (), values)
        for axis in self._derived:
            if not axis.exists(values):
                continue
            try:
                value = space_tree.expression(axis).value(params)
            except Inactive:
                continue
            look_up(params, axis.path[:-1])[axis.path[-1]] = value
        return params

    def _forbidding(self, params: Mapping[str, Any]) -> Expression | None:
        """Return the first expression of ``forbid`` that is true for a sample; None if none is."""
        for rule in self._forbid:
            try:
                if rule.value(params):
                    return rule
            except Inactive:
                continue
        return None

    def _check_names(self, known: set[str]) -> None:
        for expression in [*self._forbid, *map(space_tree.expression, self._derived)]:
            for name in sorted(map(dotted, expression.names)):
                if name not in known:
                    what = f"there is no hyperparameter {name!r}, as in {expression.text!r}"
                    raise SpaceError(expression.at, what, space_tree.guess(name, known))


def _forbidden(refused: Sequence[Expression], what: str, hint: str = "") -> SpaceError:
    """Return the error for samples refused by these expressions, at the most frequent one."""
    rule, count = Counter(refused).most_common(1)[0]
    by = "by" if count == len(refused) else "mostly by"
    return SpaceError(rule.at, f"{what} {by} {rule.text!r}", hint)


def _held(axis: Axis, domain: Domain, value: Any) -> Any:
    if not domain.holds(value):
        what = f"{value!r} is none of its values" if _few(domain) else f"{value!r} is out of bounds"
        raise SpaceError(axis.path, what)
    return value


def _few(domain: Domain) -> bool:
    return isinstance(domain, Const | Categorical)


def _covers(sample: Any, point: Any, path: Path) -> None:
    """Raise SpaceError if ``point`` has a value that the sample lacks or has differently."""
    if isinstance(point, Mapping) and isinstance(sample, Mapping):
        pairs = [(key, sample.get(key, _covers), value) for key, value in point.items()]
    elif isinstance(point, list) and isinstance(sample, list):
        items = [*sample, *[_covers] * (len(point) - len(sample))]
        pairs = [(n, items[n], value) for n, value in enumerate(point)]
    elif sample == point:
        return
    else:
        raise SpaceError(path, f"{point!r} is not what follows from the others, {sample!r}")
    for key, inside, value in pairs:
        if inside is _covers:
            raise SpaceError((*path, key), "there is no such hyperparameter with these others")
        _covers(inside, value, (*path, key))


def _product(axes: list[tuple[Axis, list[Any]]], values: Values, i: int) -> Iterator[Values]:
    if i == len(axes):
        yield values
        return
    axis, points = axes[i]
    if not axis.exists(values):
        yield from _product(axes, values, i + 1)
        return
    for point in points:
        yield from _product(axes, {**values, axis.path: point}, i + 1)


def _doubts(domain: Domain) -> Iterator[str]:
    if isinstance(domain, Log) and domain.base > 1:
        low, high, base = domain.minval, domain.maxval, domain.base
        if (0 < low < 1 and high / low >= 10) or base**high > 1e15:
            yield (
                f"the bounds of 'log' are exponents: this draws from {base**low:.6g} to "
                f"{base**high:.6g}; for values write type: loguniform, low: {low:g}, "
                f"high: {high:g}"
            )
