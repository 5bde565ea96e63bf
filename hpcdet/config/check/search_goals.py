"""Problems of a search's goals and of the experiments that it learns from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from hpcdet.config.check.problems import Problem
from hpcdet.goals import RESERVED
from hpcdet.store.config.sections.searcher_keys import COPYING, MODELLED, Constraint, Searcher
from hpcdet.store.fs import typed_fields


def problems(asked: Searcher, governed: bool) -> Iterator[Problem]:
    """Yield objectives and constraints that are impossible, or that the method does not support.

    Args:
        governed: the experiment has a policy.
    """
    yield from _past(asked)
    if not governed:
        yield from _unmeasured(asked)
    key = "searcher.objectives"
    for metric in _twice(one["metric"] for one in asked.objectives):
        yield Problem(key, f"{metric!r} is there twice", "keep one of them")
    if asked.objectives and asked.name in ("pasha", *COPYING):
        what = f"{asked.name} asks for the order of trials, and several objectives give none"
        yield Problem(key, what, "use name: async_halving, or one metric")
    key = "searcher.constraints"
    constraints = [typed_fields.build(Constraint, one) for one in asked.constraints]
    for metric in _twice(one.metric for one in constraints):
        yield Problem(key, f"{metric!r} is there twice", "one with lower and upper")
    unit = asked.max_length.unit if asked.max_length else "batches"
    for n, one in enumerate(constraints):
        if one.lower is None and one.upper is None:
            yield Problem(f"{key}.{n}", "neither lower nor upper is there", "upper: 10")
        elif one.lower is not None and one.upper is not None and one.lower > one.upper:
            what = f"no {one.metric} is above {one.lower:g} and below {one.upper:g}"
            yield Problem(f"{key}.{n}", what, "lower: the smaller one")
        if one.warmup is None or not one.warmup.value:
            continue
        if one.warmup.unit != unit:
            what = f"{one.warmup} cannot be compared with the {unit} that trials are measured in"
            yield Problem(f"{key}.{n}.warmup", what, f"write it in {unit}")
        elif asked.max_length and one.warmup.value > asked.max_length.value:
            what = f"no trial trains for {one.warmup}, so the constraint would never apply"
            yield Problem(f"{key}.{n}.warmup", what, f"at most {asked.max_length}")


def _unmeasured(asked: Searcher) -> Iterator[Problem]:
    """Metrics that governance alone reports, where there is no policy."""
    objectives = [one["metric"] for one in asked.objectives] or [asked.metric]
    places = {
        "searcher.objectives" if asked.objectives else "searcher.metric": objectives,
        "searcher.constraints": [one["metric"] for one in asked.constraints],
    }
    for key, names in places.items():
        for name in names:
            if name.startswith(RESERVED):
                what = f"nothing reports {name!r} without a policy"
                yield Problem(key, what, "governance: {policy: FILE}, or another metric")


def _twice(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def _past(asked: Searcher) -> Iterator[Problem]:
    past, key = asked.warm_start, "searcher.warm_start"
    if past is None:
        return
    sampler = asked.sampler.name or MODELLED.get(asked.name)
    if asked.objectives or asked.constraints:
        what = "results for one metric cannot guide several objectives or constraints"
        yield Problem(key, what, "leave it out; initial goes with them")
    elif sampler not in ("tpe", "gp") and not past.best:
        what = "this search method does not use former results"
        hint = "add sampler: {name: tpe}, or warm_start.best: 3 to try the best ones again"
        yield Problem(key, what, hint)
