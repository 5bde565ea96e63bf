"""Results of former experiments, for a search that begins from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcdet.errors import ConfigError, NotFound
from hpcdet.read.lookup import find
from hpcdet.search.api import codec, events, ranking
from hpcdet.space.errors import SpaceError, dotted
from hpcdet.space.space import Space
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.decisions import chain
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.trials.history import History, HistorySource, Past

_SHORT = "too short for the first rung"
_SILENT = "without a report"
_MORE = "more than asked for"


def collect(resolved: Resolved, root: Path) -> History | None:
    """Return the results that ``searcher.warm_start`` names; None without that key.

    A trial counts at a rung of the new search with its first report at or after that length.

    Args:
        root: the folder of all experiments.

    Raises:
        NotFound: there is no such experiment.
        ConfigError: one of them cannot be compared with this one, or none of their trials can.
    """
    wanted = resolved.searcher.warm_start
    if wanted is None:
        return None
    space = Space(resolved.hyperparameters)
    left_out: dict[str, Counter[str]] = {}
    found: list[Past] = []
    for name in wanted.experiments:
        paths = _found(name, root)
        if paths.id in left_out:
            continue
        left_out[paths.id] = Counter()
        found += _usable(paths, resolved, space, left_out[paths.id])
    found.sort(key=_rank)
    most = len(found) if wanted.trials is None else wanted.trials
    for past in found[most:]:
        left_out[past.source][_MORE] += 1
    found = found[:most]
    taken = Counter(past.source for past in found)
    sources = [HistorySource(id, taken[id], dict(left)) for id, left in left_out.items()]
    if not found:
        what = f"nothing to begin from: {'; '.join(map(str, sources))}"
        hint = "take in spaces and lengths that they share, or leave searcher.warm_start out"
        raise ConfigError(what, where="searcher.warm_start", hint=hint)
    return History(sources, found)


def _found(name: str, root: Path) -> ExperimentPaths:
    try:
        return find.experiment(name, root)
    except NotFound as error:
        where = "searcher.warm_start.experiments"
        raise NotFound(f"{name}: {error.what}", where=where, hint=error.hint) from error


def _rank(past: Past) -> tuple[int, list[Any], str]:
    """Farthest first, then best, then as they were made."""
    length, loss = past.shown[-1]
    return -length, ranking.entry(loss, past.trial), past.source


@dataclass
class _Trial:
    params: Mapping[str, Any] = field(default_factory=dict)
    reports: list[events.Report] = field(default_factory=list)
    refused: bool = False


def _usable(
    paths: ExperimentPaths, resolved: Resolved, space: Space, left_out: Counter[str]
) -> Iterator[Past]:
    """The trials of one experiment that are points of the space and came to a rung."""
    trials = _trials(paths)
    _comparable(paths, resolved, trials)
    for number, trial in sorted(trials.items()):
        if trial.refused or not trial.reports:
            left_out["refused by the code" if trial.refused else _SILENT] += 1
            continue
        try:
            space.check(trial.params)
        except SpaceError as error:
            left_out[f"outside the space ({dotted(error.path)})"] += 1
            continue
        shown = _shown(resolved, trial.reports)
        if shown:
            yield Past(paths.id, number, dict(trial.params), shown)
        else:
            left_out[_SHORT] += 1


def _trials(paths: ExperimentPaths) -> dict[int, _Trial]:
    """Return the trials of an experiment, read from its searcher's records."""
    found: dict[int, _Trial] = {}
    for line in chain.read(paths):
        if line["kind"] == "action":
            action = codec.decode_action(line["action"])
            if isinstance(action, events.Create):
                found[action.trial] = _Trial(action.params)
        elif line["kind"] == "event":
            match codec.decode_event(line["event"]):
                case events.Report(trial=number) as report if number in found:
                    found[number].reports.append(report)
                case events.SegmentEnd(trial=number, reason="invalid_hp") if number in found:
                    found[number].refused = True
    return found


def _comparable(paths: ExperimentPaths, resolved: Resolved, trials: dict[int, _Trial]) -> None:
    """Raises ConfigError: it reports something else, or measures trials in another unit."""
    asked, where = resolved.searcher, "searcher.warm_start.experiments"
    reports = [report for trial in trials.values() for report in trial.reports]
    needed = [asked.metric, *([asked.time_metric] if asked.time_metric else [])]
    for metric in needed:
        if not any(metric in report.metrics for report in reports):
            hint = "it has no reports" if not reports else f"it has {', '.join(_names(reports))}"
            raise ConfigError(f"{paths.id} has never reported {metric!r}", where=where, hint=hint)
    unit = asked.max_length.unit if asked.max_length else "batches"
    others = {report.length.unit for report in reports} - {unit}
    if others and not asked.time_metric:
        what = f"{paths.id} measures trials in {', '.join(sorted(others))}, this search in {unit}"
        raise ConfigError(what, where=where, hint="write searcher.max_length in the same unit")


def _names(reports: list[events.Report]) -> list[str]:
    return sorted({name for report in reports for name in report.metrics})[:10]


def _shown(resolved: Resolved, reports: list[events.Report]) -> list[list[Any]]:
    asked = resolved.searcher
    lengths = {length for bracket in asked.brackets for length in bracket.rungs}
    rungs = sorted(lengths or ({asked.top} if asked.top else set()))
    found: list[list[Any]] = []
    for report in reports:
        far: float | None = report.length.value
        if asked.time_metric:
            far = ranking.loss(report.metrics, asked.time_metric, True)
        while far is not None and rungs and far >= rungs[0]:
            loss = ranking.loss(report.metrics, asked.metric, asked.smaller_is_better)
            found.append([rungs.pop(0), loss])
    return found
