"""Several objectives at once: who dominates whom, fronts, and an order within a front.

Points are losses, smaller is better in each; all are finite and of one dimension. Fronts are
those of non-dominated sorting: nobody dominates the first, only members of the first dominate
the second, and so on. Within a front an epsilon net gives the order, as in MO-ASHA (Schmucker et
al., "Multi-objective Asynchronous Successive Halving", 2021): each point is the one farthest from
all before it, so that any beginning of the order is spread over the front. The first is the one
with the lowest first objective, which makes it a function of the points alone.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from operator import le, lt

Point = Sequence[float]

NET = 64
"""Points of a front that an epsilon net chooses; the others follow by their distance to it."""


def dominates(one: Point, other: Point) -> bool:
    """No worse in any objective, and better in one."""
    if one[0] > other[0]:  # that settles it for half of all pairs
        return False
    return all(map(le, one, other)) and any(map(lt, one, other))


def layers(points: Sequence[Point]) -> list[int]:
    """The front of each point, 0 for the best.

    In lexicographic order nobody is dominated by a later one, and whoever is dominated by nobody in
    a front is dominated by nobody in the fronts behind it: a binary search (Zhang et al., "An
    Efficient Approach to Nondominated Sorting", IEEE TEVC 2015).
    """
    fronts: list[list[Point]] = []
    found = [0] * len(points)
    for index in sorted(range(len(points)), key=lambda i: tuple(points[i])):
        point = points[index]
        low, high = 0, len(fronts)
        while low < high:
            middle = (low + high) // 2
            if any(dominates(other, point) for other in reversed(fronts[middle])):
                low = middle + 1
            else:
                high = middle
        if low == len(fronts):
            fronts.append([])
        fronts[low].append(point)
        found[index] = low
    return found


def spread(points: Sequence[Point]) -> list[int]:
    """The order of the points of one front: their indices. Ties go to the lower index."""
    return list(_spread(tuple(map(tuple, points))))


@functools.lru_cache(maxsize=16)
def _spread(points: tuple[tuple[float, ...], ...]) -> list[int]:
    """A search asks for the same fronts with each event, and most of them are as before."""
    if len(points) < 2:
        return list(range(len(points)))
    scaled = list(zip(*(_scaled(values) for values in zip(*points, strict=True)), strict=True))
    chosen = min(range(len(points)), key=lambda i: (scaled[i], i))
    gaps = [math.dist(point, scaled[chosen]) for point in scaled]
    order, left = [chosen], [i for i in range(len(points)) if i != chosen]
    while left and len(order) < NET:
        chosen = max(left, key=gaps.__getitem__)
        order.append(chosen)
        left.remove(chosen)
        for i in left:
            gaps[i] = min(gaps[i], math.dist(scaled[i], scaled[chosen]))
    return order + sorted(left, key=lambda i: (-gaps[i], i))


def _scaled(values: Sequence[float]) -> list[float]:
    """To 0 … 1; halves, as a difference of two finite numbers may be infinite."""
    low, high = min(values), max(values)
    width = high / 2 - low / 2
    return [(value / 2 - low / 2) / width if width else 0.0 for value in values]


def hypervolume(points: Sequence[Point], reference: Point) -> float:
    """The area that points of two objectives dominate, up to the reference point.

    Raises:
        ValueError: the objectives are not two.
    """
    if len(reference) != 2:
        raise ValueError(f"the hypervolume of {len(reference)} objectives")
    total, ceiling = 0.0, reference[1]
    for first, second in sorted((p[0], p[1]) for p in points):
        if first < reference[0] and second < ceiling:
            total += (reference[0] - first) * (ceiling - second)
            ceiling = second
    return total
