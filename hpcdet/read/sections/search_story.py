"""The section ``search``: how the best value came about, and what the search decided and why."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hpcdet.read.experiment.gather import Gathered
from hpcdet.read.experiment.series import number
from hpcdet.read.sections import importance
from hpcdet.read.sections.extent import ReportExtent, cut
from hpcdet.read.sections.importance import Importances
from hpcdet.read.views.views import StatusView

_RULE = re.compile(r"^(?P<rule>[^:]{1,60}): (?P<rest>.*)$", re.DOTALL)
_RANK = re.compile(r"rank (\d+) of (\d+)")
_BEST = re.compile(r"(?:the best (\d+)|best ([\d.]+ %)) go on|nobody goes on")
_BEYOND = re.compile(r"is (?:below|above) (\S+)")


@dataclass(frozen=True)
class BestSoFarView:
    """The best value after a number of trials have ended."""

    n: int
    """Number of trials that had ended with a value."""
    trial: int
    """The trial that ended."""
    value: float
    """Its best value."""
    best: float
    """The best value of all until then."""


@dataclass(frozen=True)
class RungView:
    """A rung: a length at which the search compares trials."""

    length: int
    """Length, in the search's unit."""
    unit: str
    """That unit."""
    reported: list[int]
    """Trials that reported there, the best first."""
    went_on: list[int]
    """Of these, trials that reported at the next rung."""
    why: dict[int, str]
    """By trial, the search's words where it let one go on later."""
    best: float | None
    """The best value there."""
    last_on: float | None
    """The worst value there of a trial that went on."""


@dataclass(frozen=True)
class StopView:
    """A decision of the search by which a trial left."""

    time: str
    """When."""
    trial: int
    """The trial."""
    act: str
    """``stop``: for good. ``pause``: the search may let it go on later."""
    rule: str
    """The rule or rung; "" where the search named none."""
    length: int | None
    """Length of the report on which it was decided; null without one."""
    unit: str
    """Unit of that length."""
    value: Any
    """The searcher's metric in that report; null without one."""
    bound: str
    """What would have let it go on; "" where the search named no bound."""
    compared: str
    """What it was compared with; "" where with nothing."""
    why: str
    """The search's own words."""


@dataclass(frozen=True)
class FrontPoint:
    """A trial by its objectives."""

    trial: int
    """Its number."""
    values: dict[str, Any]
    """Value of each objective and constraint."""
    kind: str
    """``front``, ``feasible`` or ``infeasible``."""


@dataclass(frozen=True)
class SearchSection:
    """The search."""

    method: str
    """The search method."""
    metric: str
    """The searcher's metric."""
    smaller_is_better: bool
    """True if smaller values of it are better."""
    objectives: list[str]
    """Metrics of all objectives."""
    history: list[BestSoFarView]
    """The best value so far, by the trials' ends."""
    rungs: list[RungView]
    """Rungs, the shortest first; none without halving."""
    stops: list[StopView]
    """Every decision by which a trial left, in their order."""
    stops_left_out: int
    """Decisions that are not listed here: the newest."""
    importance: Importances
    """Importance of hyperparameters."""
    front: list[FrontPoint]
    """Trials by their objectives, where there are several; those on the front first."""


def section(gathered: Gathered, status: StatusView, extent: ReportExtent) -> SearchSection:
    """Return the section."""
    stops, more = cut([*_stops(gathered, status)], extent.rows)
    history = _history(status)
    step = max(1, len(history) // max(1, extent.rows))
    return SearchSection(
        method=status.searcher,
        metric=status.metric,
        smaller_is_better=status.smaller_is_better,
        objectives=status.objectives,
        history=[
            one for n, one in enumerate(history) if n % step == 0 or one.best != history[n - 1].best
        ],
        rungs=[*_rungs(gathered, status)],
        stops=stops,
        stops_left_out=more,
        importance=importance.for_search(gathered, status.trials),
        front=_front(status)[: extent.rows],
    )


def _history(status: StatusView) -> list[BestSoFarView]:
    choose = min if status.smaller_is_better else max
    found: list[BestSoFarView] = []
    for row in sorted(status.trials, key=lambda row: (row.end == "", row.end, row.trial)):
        value = number(row.best)
        if value is None or abs(value) == float("inf"):
            continue
        if row.compared is not None and row.compared.feasible is False:
            continue
        best = choose(found[-1].best, value) if found else value
        found.append(BestSoFarView(len(found) + 1, row.trial, value, best))
    return found


def _rungs(gathered: Gathered, status: StatusView) -> Iterator[RungView]:
    searcher = gathered.config.searcher
    lengths = sorted({rung.value for rung in searcher.rungs})
    if len(lengths) < 2:
        return
    at: dict[int, dict[int, Any]] = defaultdict(dict)
    reached: dict[int, int] = {}
    for trial in gathered.trials:
        for _, length, value in trial.validations(status.metric):
            at[length][trial.number] = value
            reached[trial.number] = max(reached.get(trial.number, 0), length)
    sign = 1 if status.smaller_is_better else -1
    unit = searcher.max_length.unit if searcher.max_length else "batches"
    promoted = [*_promoted(gathered)]
    for length, above in zip(lengths, [*lengths[1:], None], strict=True):
        values = {trial: number(value) for trial, value in at[length].items()}
        known = {trial: value for trial, value in values.items() if value is not None}
        order = sorted(known, key=lambda trial: (sign * known[trial], trial))
        order += sorted(values.keys() - known.keys())
        on = [trial for trial in order if above is not None and reached[trial] >= above]
        with_value = [trial for trial in on if trial in known]
        yield RungView(
            length=length,
            unit=unit,
            reported=order,
            went_on=on,
            why={trial: why for trial, why in promoted if f"({length} {unit})" in why},
            best=known[order[0]] if known else None,
            last_on=known[with_value[-1]] if with_value else None,
        )


def _promoted(gathered: Gathered) -> Iterator[tuple[int, str]]:
    for line in gathered.decisions:
        action = line["action"] if line["kind"] == "action" else {}
        if action.get("kind") == "continue" and action.get("why"):
            yield int(action["trial"]), str(action["why"])


def _stops(gathered: Gathered, status: StatusView) -> Iterator[StopView]:
    last: dict[str, Any] = {}
    for line in gathered.decisions:
        if line["kind"] == "event":
            last = line["event"]
        elif line["kind"] == "action" and line["action"].get("kind") in ("stop", "pause"):
            action = line["action"]
            own = last if last.get("kind") == "report" else {}
            own = own if own.get("trial") == action.get("trial") else {}
            yield _stop(line["t"], action, own, status)


def _stop(
    time: str, action: dict[str, Any], report: dict[str, Any], status: StatusView
) -> StopView:
    why = str(action.get("why", ""))
    named = _RULE.match(why)
    unit, length = next(iter((report.get("length") or {}).items()), ("", None))
    ranked, best, beyond = _RANK.search(why), _BEST.search(why), _BEYOND.search(why)
    bound = compared = ""
    if ranked and best:
        share = best[1] or best[2]
        nobody = share in (None, "0")  # "the best 0": so searches said it before
        bound = "nobody went on yet" if nobody else f"among the best {share} of {ranked[2]}"
        others = int(ranked[2]) - 1
        known = f"{others or 'no'} other trial{'s' if others != 1 else ''}"
        compared = f"{known} that had reported there: rank {ranked[1]}"
    elif beyond:
        bound = beyond[1]
    return StopView(
        time=time,
        trial=int(action.get("trial", 0)),
        act=str(action["kind"]),
        rule=named["rule"] if named else "",
        length=int(length) if length is not None else None,
        unit=str(unit),
        value=(report.get("metrics") or {}).get(status.metric),
        bound=bound,
        compared=compared,
        why=why,
    )


def _front(status: StatusView) -> list[FrontPoint]:
    if len(status.objectives) < 2:
        return []
    found = []
    for row in status.trials:
        one = row.compared
        if one is not None and any(value is not None for value in one.objectives.values()):
            kind = (
                "front" if one.on_front else "infeasible" if one.feasible is False else "feasible"
            )
            found.append(FrontPoint(row.trial, one.objectives | one.constraints, kind))
    return sorted(found, key=lambda point: (point.kind != "front", point.trial))
