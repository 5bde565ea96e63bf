"""Output of ``plan`` for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hpcdet import units
from hpcdet.cli.frame import text_format
from hpcdet.cli.frame.output import Item
from hpcdet.jobs.script import succession
from hpcdet.read.views.items import text

Facts = Iterator[tuple[str, str]]


def facts(item: Item) -> Facts:
    """Yield labels and values of ``plan``'s item."""
    unit = item["unit"]
    rule = f", rule {item['rule']}" if item["rule"] else ""
    yield "id", text(item["id"])
    sampler = f", sampler {item['sampler']}" if item["sampler"] else ""
    yield "searcher", f"{item['searcher']}{rule}{sampler}"
    if item["searcher"] in ("adaptive_asha", "hyperband"):
        yield "hint", "name: async_halving finds as good a trial sooner, unless first rungs mislead"
    yield "metric", text(item["metric"])
    if len(item["objectives"]) > 1:
        yield "objectives", ", ".join(map(text, item["objectives"]))
    if item["constraints"]:
        yield "constraints", ", ".join(map(text, item["constraints"]))
    yield "trials", f"{item['trials']}, {item['concurrent_trials']} at once"
    if people := item["population"]:
        many = f"{people['comparisons']} comparisons, one every {people['interval']} {unit}"
        yield "population", f"{people['size']}; {many}"
    for number, one in enumerate(item["brackets"], 1):
        yield f"bracket {number}", bracket(one, unit)
    if item["units"] is not None:
        yield "training", f"{item['units']} {unit} in all"
    if item["beyond"]:
        yield "beyond rungs", _beyond(item["beyond"], unit)
    workers, slots = item["workers"], item["slots"]
    lanes = f" of {workers['lanes']} lanes" if workers["lanes"] > 1 else ""
    spread = workers["nodes"] > slots["nodes_per_trial"]
    lanes += f" on {workers['nodes']} nodes each" if spread else ""
    nodes = f" on {slots['nodes_per_trial']} nodes" if slots["nodes_per_trial"] > 1 else ""
    yield "workers", f"{workers['at_once']}{lanes}"
    yield "slots", f"{slots['at_once']} at once, {slots['per_trial']} for each trial{nodes}"
    yield "cost", _cost(item["cost"])
    yield "end", _end(item["cost"])
    if budget := _budget(item["budget"]):
        yield "budget", budget
    if item["begin_from"]:
        yield "begins from", item["begin_from"]
    for source in item["warm_start"]:
        yield "warm start", source
    yield "site", text(item["site"])
    yield "after a dead node", succession.WORDS[item["succession"]]
    yield from _storage(item["storage"])
    for one in item["free"]:
        has = [f"{one['inodes']} inodes"] if one["inodes"] is not None else []
        has += [units.size(one["bytes"])] if one["bytes"] is not None else []
        yield f"left, {one['by']}", f"{', '.join(has) or 'no limit'} in {one['place']}"


def bracket(one: dict[str, Any], unit: str | None) -> str:
    """Format a bracket: ``7 trials; to 100 batches: 5, 300: 1, 900: 1``."""
    said = f"{one['trials']} trials"
    ends = list(zip(one["rungs"], one["ends"], strict=True))
    if not ends:
        return f"{said}; the length is in the code"
    (first, count), *others = ends
    steps = [f"to {first} {unit}: {count}", *(f"{rung}: {count}" for rung, count in others)]
    return f"{said}; {', '.join(steps)}"


def _beyond(found: dict[str, Any], unit: str | None) -> str:
    """Format the estimated training beyond rungs during decisions, with the rates used."""
    rates = f"decisions take {found['decision_s']:.3g} s ({found['decision_by']})"
    if found["units"] is None:
        return f"not known; {rates}, --trial-time says how fast trials train"
    pace = f"1 {unit} {found['unit_s']:.3g} s ({found['pace_by']})"
    return (
        f"about {found['units']} {unit} more while decisions travel: {found['trials']} trials "
        f"leave at rungs; {rates}, {pace}"
    )


def _cost(cost: dict[str, Any]) -> str:
    if cost["slot_hours"] is None:
        return "not known; --trial-time says how long one whole training takes"
    if cost["by"] == "walltime":
        return f"{cost['slot_hours']:g} slot hours, if a whole training takes the walltime"
    source = "" if cost["by"] == "--trial-time" else f", at the pace of {cost['by']}"
    return f"{cost['slot_hours']:g} slot hours{source}"


def _end(cost: dict[str, Any]) -> str:
    """Format the estimated end of a submission made now, or which input is missing for it."""
    if cost["run_s"] is None:
        return "not known"
    runs = f"{units.duration(cost['run_s'])} of training"
    if cost["end_s"] is None:
        return f"{runs} after the wait in the queue; --queue-wait says how long that is"
    times = f"{cost['allocations']} times " if cost["allocations"] > 1 else ""
    by = "" if cost["queue_by"] == "--queue-wait" else f" (as those of {cost['queue_by']})"
    wait = units.duration(cost["queue_s"])
    queue = f", {times}{wait} in the queue{by}" if cost["queue_s"] else ""
    when = text_format.when(cost["ends_at"])
    return f"about {when}, if it were submitted now: {runs}{queue}"


def _budget(budget: dict[str, Any]) -> str:
    hours = [f"{budget['slot_hours']:g} slot hours"] if budget["slot_hours"] is not None else []
    wall = [units.duration(budget["wall_s"])] if budget["wall_s"] is not None else []
    return ", ".join(hours + wall)


def _storage(need: dict[str, Any]) -> Facts:
    trial = need["inodes_per_trial"]
    each = f"a trial: {trial['running']} while it runs, {trial['ended']} then"
    yield "inodes at most", f"{need['inodes']} ({each})"
    size = units.size(need["bytes"]) or "size not known; --checkpoint-size says it"
    each = f" ({units.size(need['checkpoint_bytes'])} each)" if need["bytes"] is not None else ""
    yield "checkpoints", f"{need['checkpoints']}, {size}{each}"
    if need["max_paused_bytes"] is not None:
        paused = units.size(need["paused_bytes"]) or "size not known"
        yield "paused at most", f"{paused} of {units.size(need['max_paused_bytes'])}"
