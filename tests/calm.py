"""A search in memory that nobody disturbs, to compare one with that somebody did."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hpcdet.search import searcher_factory
from hpcdet.search.api import codec, events
from hpcdet.store.config import resolved_config
from hpcdet.store.config.resolved_config import Resolved
from hpcdet.store.decisions import chain
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.units import Length
from tests import fake_rank


@dataclass
class Calm:
    """Trials that report what fake ranks do, at each rung once, and end where they are to end.

    Only the order in which they are heard is somebody else's: which trial is next.
    """

    resolved: Resolved
    reached: dict[int, int] = field(default_factory=dict)
    until: dict[int, int] = field(default_factory=dict)
    stopped: set[int] = field(default_factory=set)
    over: bool = False

    def course(self, turns: list[tuple[str, int]]) -> Iterator[dict[str, Any]]:
        """Events and decisions when so many turns come, each of a kind and a trial."""
        method = searcher_factory.searcher(self.resolved)
        state = method.initial()
        for kind, trial in turns:
            event = self._event(kind, trial)
            yield _plain(codec.encode_event(event))
            kept = json.loads(json.dumps(codec.encode_state(state)))
            state = codec.decode_state(method.initial(), kept)
            state, actions = method.on_event(state, event)
            for action in actions:
                self._take(action)
                yield _plain(codec.encode_action(action))

    def _event(self, kind: str, trial: int) -> events.Event:
        if kind == "start":
            return events.Start()
        if kind == "report":
            unit = "batches"
            rungs = [rung.value for rung in self.resolved.searcher.rungs]
            at = min(rung for rung in rungs if rung > self.reached[trial])
            self.reached[trial] = at
            shown = fake_rank.loss(trial, at, self.resolved.data.get("losses", ""))
            return events.Report(trial, Length(unit, at), {"validation_loss": shown})  # type: ignore[arg-type]
        assert kind == "segment_end", kind
        there = self.reached.pop(trial) == self.until[trial]  # nothing comes of it from now on
        assert there or self.over or trial in self.stopped, f"trial {trial} has no cause to end"
        return events.SegmentEnd(trial, "target" if there else "stopped")

    def _take(self, action: events.Action) -> None:
        match action:
            case events.Create(trial=trial, until=Length(value=value)):
                self.reached[trial], self.until[trial] = 0, value
            case events.Continue(trial=trial, until=Length(value=value)):
                self.until[trial] = value
            case events.Stop(trial=trial):
                self.stopped.add(trial)
            case events.Shutdown():
                self.over = True


def recorded(paths: ExperimentPaths) -> list[dict[str, Any]]:
    """Events and decisions of a search, without what the training has cost."""
    lines = chain.read(paths)
    return [_plain(ln[ln["kind"]]) for ln in lines if ln["kind"] in ("event", "action")]


def undisturbed(paths: ExperimentPaths) -> list[dict[str, Any]]:
    """The same of a search that nobody disturbs and that hears of its trials in that order."""
    told = [line["event"] for line in chain.read(paths) if line["kind"] == "event"]
    turns = [(event["kind"], event.get("trial", 0)) for event in told]
    return list(Calm(resolved_config.load(paths.config)).course(turns))


def _plain(value: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(value))
    return {key: each for key, each in plain.items() if key != "seconds"}
