"""Shapes of values in Determined's configs that hpcdet's configs express in another way."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

from hpcdet.config.check.problems import Problem
from hpcdet.store.config.sections.searcher_keys import HALVING

_UNITS = ("batches", "records", "epochs")


def rewrite(values: dict[str, Any]) -> Iterator[tuple[Problem, bool]]:
    """Convert foreign shapes in ``values`` to hpcdet's.

    Yields:
        What was found, and whether it is an error (else a warning).
    """
    yield from _time(values.get("searcher"))
    yield from _stop_once(values.get("searcher"))
    yield from _objectives(values.get("searcher"))
    yield from _slots(values)
    yield from _pools(values)
    yield from _log_policies(values)
    yield from _walltime(values)


def is_determineds(written: Mapping[str, Any]) -> bool:
    """True if a search is written with keys that only Determined has."""
    searcher = written.get("searcher")
    return isinstance(searcher, Mapping) and not {"max_time", "stop_once"}.isdisjoint(searcher)


def _time(searcher: Any) -> Iterator[tuple[Problem, bool]]:
    """Convert ``max_time: 900, time_metric: batches`` to ``max_length: {batches: 900}``.

    Where trials are compared the metric may be any that the code reports.
    """
    if not isinstance(searcher, dict):
        return
    for key in ("max_time", "time_metric"):
        if searcher.get(key, 0) is None:
            del searcher[key]  # as if it were not there
    if not {"max_time", "time_metric"} & searcher.keys():
        return
    unit, amount = searcher.get("time_metric"), searcher.get("max_time")
    if unit is not None and unit not in _UNITS and searcher.get("name") in HALVING:
        return
    searcher.pop("time_metric", None), searcher.pop("max_time", None)
    if searcher.get("max_length") is not None:
        what = "there are two lengths: max_length and max_time"
        hint = "Determined takes max_time: leave max_length out"
        yield Problem("searcher.max_length", what, hint), True
    elif unit is None:
        what = "'time_metric' is missing: what max_time counts"
        hint = f"time_metric: batches, or max_length: {{batches: {amount}}} in its place"
        yield Problem("searcher.max_time", what, hint), True
    elif unit not in _UNITS:
        hint = f"write one of {', '.join(_UNITS)}, or max_length"
        yield Problem("searcher.time_metric", f"{unit!r} is no unit of length here", hint), True
    elif amount is None:
        yield Problem("searcher.time_metric", "'max_time' is missing", "max_time: 900"), True
    else:
        searcher["max_length"] = {unit: amount}


def _stop_once(searcher: Any) -> Iterator[tuple[Problem, bool]]:
    """Convert ``stop_once`` to ``rule``: stopping if true, else promotion, as in old Determined."""
    if not isinstance(searcher, dict) or not isinstance(searcher.get("stop_once"), bool):
        return
    rule = "stopping" if searcher.pop("stop_once") else "promotion"
    if searcher.setdefault("rule", rule) != rule:
        what = f"it means rule: {rule}, and rule is {searcher['rule']}"
        yield Problem("searcher.stop_once", what, "keep rule"), True


def _objectives(searcher: Any) -> Iterator[tuple[Problem, bool]]:
    """Make the first of several objectives the metric; a single one becomes the metric alone."""
    listed = searcher.get("objectives") if isinstance(searcher, dict) else None
    if not isinstance(listed, list) or not listed or not isinstance(listed[0], dict):
        return
    first = {"smaller_is_better": True, **listed[0]}
    for key in ("metric", "smaller_is_better"):
        if key in first and searcher.setdefault(key, first[key]) != first[key]:
            what = f"it is {searcher[key]!r}, and {first[key]!r} of the first of the objectives"
            yield Problem(f"searcher.{key}", what, "leave it out: the objectives say it"), True
    if len(listed) == 1 and listed[0].keys() <= {"metric", "smaller_is_better"}:
        del searcher["objectives"]


def _log_policies(values: dict[str, Any]) -> Iterator[tuple[Problem, bool]]:
    """Convert actions of ``log_policies`` with a type, ``{type: exclude_node}``."""
    policies = values.get("log_policies")
    if isinstance(policies, list):
        values["log_policies"] = [_plain_action(policy) for policy in policies]
    yield from ()


def _plain_action(policy: Any) -> Any:
    action = policy.get("action") if isinstance(policy, dict) else None
    if isinstance(action, dict) and action.keys() == {"type"}:
        return {**policy, "action": action["type"]}
    return policy


def _slots(values: dict[str, Any]) -> Iterator[tuple[Problem, bool]]:
    """Convert 0 slots to one process, and ``slurm.slots_per_node`` to hpcdet's key."""
    resources = values.get("resources") or {}
    if not isinstance(resources, dict):
        return
    if resources.get("slots_per_trial") == 0:
        values["resources"] = resources = {**resources, "slots_per_trial": 1}
        what = "0 becomes 1: every trial has at least one process"
        yield Problem("resources.slots_per_trial", what), False
    for system in ("slurm", "pbs"):
        section = values.get(system)
        given = section.get("slots_per_node") if isinstance(section, dict) else None
        total = resources.get("slots_per_trial", 1)
        if _whole(given) and _whole(total) and not resources.get("slots_per_node"):
            resources = {**resources, "slots_per_node": min(given, total)}
            if "nodes" not in resources and total % given == 0:
                resources["nodes"] = total // given
            values["resources"] = resources


def _pools(values: dict[str, Any]) -> Iterator[tuple[Problem, bool]]:
    """Convert ``resource_pool: [a, b]`` to the one text that schedulers take."""
    resources = values.get("resources")
    pools = resources.get("resource_pool") if isinstance(resources, dict) else None
    if isinstance(resources, dict) and isinstance(pools, list):
        names = [pool for pool in pools if isinstance(pool, str) and pool and "," not in pool]
        one = ",".join(dict.fromkeys(names)) or None
        values["resources"] = {**resources, "resource_pool": one}
        if one is None or len(names) < len(pools):
            what = f"{pools!r} is no list of names"
            yield Problem("resources.resource_pool", what, "resource_pool: [gpu, long]"), True


def _whole(value: Any) -> TypeGuard[int]:
    """A whole number above zero; the check of the key itself reports anything else."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _walltime(values: dict[str, Any]) -> Iterator[tuple[Problem, bool]]:
    """Convert ``--time`` among the options of sbatch to the walltime, which hpcdet must know."""
    slurm = values.get("slurm")
    arguments = slurm.get("sbatch_args") if isinstance(slurm, dict) else None
    if not isinstance(arguments, list) or not all(isinstance(a, str) for a in arguments):
        return
    for place, argument in enumerate(arguments):
        match = re.fullmatch(r"(?:--time=|-t\s*)(\S+)", argument)
        if not match:
            continue
        resources = values.get("resources") or {}
        if isinstance(resources, dict) and resources.get("walltime_s") is None:
            time = int(match[1]) * 60 if match[1].isdigit() else match[1]
            values["resources"] = {**resources, "walltime_s": time}
            rest = [*arguments[:place], *arguments[place + 1 :]]
            values["slurm"] = {**slurm, "sbatch_args": rest}  # type: ignore[dict-item]
        else:
            key, what = f"slurm.sbatch_args.{place}", "the walltime is there twice"
            yield Problem(key, what, "keep resources.walltime_s"), True
        return
