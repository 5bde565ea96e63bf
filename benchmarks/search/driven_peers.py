"""Peers' schedulers and searchers as searchers of ours, for part h (``tabled``)."""

from __future__ import annotations

import datetime
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from benchmarks.search.rules import METRIC, Ladder
from hpcdet.search.api import events
from hpcdet.units import Length


class Peer(Protocol):
    """A peer's scheduler and searcher."""

    def suggest(self, trial: int) -> dict[str, Any]: ...

    def goes_on(self, trial: int, length: int, loss: float) -> bool: ...


@dataclass
class Driven:
    """A peer as a searcher of ours: a new trial for each that ended."""

    ladder: Ladder
    peer: Peer
    name: str = "peer"
    version: int = 1

    def initial(self) -> events.State:
        return {"made": 0, "open": 0}

    def on_event(
        self, state: events.State, event: events.Event
    ) -> tuple[events.State, list[events.Action]]:
        actions: list[events.Action] = []
        match event:
            case events.Report(trial, length, metrics):
                on = self.peer.goes_on(trial, length.value, metrics[METRIC])
                if not on and length.value < self.ladder.full:
                    actions.append(events.Stop(trial))
                return state, actions
            case events.SegmentEnd():
                state["open"] -= 1
        while state["open"] < self.ladder.workers:
            state["made"] += 1
            state["open"] += 1
            params = self.peer.suggest(state["made"])
            actions.append(
                events.Create(state["made"], params, 0, Length("batches", self.ladder.full))
            )
        return state, actions


class Syne:
    """Syne Tune's ASHA or BOHB. It draws from numpy's and Python's global generators, too."""

    def __init__(self, ladder: Ladder, space: dict[str, Any], seed: int, model: bool) -> None:
        from syne_tune import config_space as of
        from syne_tune.optimizer.baselines import ASHA, BOHB

        def domain(asked: Mapping[str, Any]) -> Any:
            match asked["type"]:
                case "loguniform":
                    return of.loguniform(asked["low"], asked["high"])
                case "log_int":
                    return of.lograndint(asked["low"], asked["high"])
                case "int":
                    return of.randint(asked["minval"], asked["maxval"])
                case "double":
                    return of.uniform(asked["minval"], asked["maxval"])
            return of.choice(asked["vals"])

        np.random.seed(seed)
        random.seed(seed)
        self.scheduler = (BOHB if model else ASHA)(
            {name: domain(asked) for name, asked in space.items()},
            metric="loss",
            time_attr="t",
            max_t=ladder.full,
            grace_period=ladder.rungs[0],
            reduction_factor=ladder.eta,
            random_seed=seed,
        )
        self.trials: dict[int, Any] = {}

    def suggest(self, trial: int) -> dict[str, Any]:
        from syne_tune.backend.trial_status import Trial

        config = self.scheduler.suggest().config
        self.trials[trial] = Trial(trial, config, datetime.datetime.now())
        self.scheduler.on_trial_add(self.trials[trial])
        return dict(config)

    def goes_on(self, trial: int, length: int, loss: float) -> bool:
        said = self.scheduler.on_trial_result(self.trials[trial], {"t": length, "loss": loss})
        if said != "CONTINUE":
            self.scheduler.on_trial_remove(self.trials[trial])
        return bool(said == "CONTINUE")


class RayOptuna:
    """Ray Tune's ASHA with its OptunaSearch, as Tune calls them."""

    def __init__(self, ladder: Ladder, space: dict[str, Any], seed: int) -> None:
        import optuna
        from ray.tune.schedulers import AsyncHyperBandScheduler
        from ray.tune.search.optuna import OptunaSearch

        of = optuna.distributions

        def domain(asked: Mapping[str, Any]) -> Any:
            match asked["type"]:
                case "loguniform":
                    return of.FloatDistribution(asked["low"], asked["high"], log=True)
                case "log_int":
                    return of.IntDistribution(asked["low"], asked["high"], log=True)
                case "int":
                    return of.IntDistribution(asked["minval"], asked["maxval"])
                case "double":
                    return of.FloatDistribution(asked["minval"], asked["maxval"])
            return of.CategoricalDistribution(asked["vals"])

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        domains = {name: domain(asked) for name, asked in space.items()}
        self.search = OptunaSearch(domains, metric="loss", mode="min", seed=seed)
        self.scheduler = AsyncHyperBandScheduler(
            time_attr="training_iteration",
            metric="loss",
            mode="min",
            max_t=ladder.full,
            grace_period=ladder.rungs[0],
            reduction_factor=ladder.eta,
        )
        self.trials: dict[int, Any] = {}

    def suggest(self, trial: int) -> dict[str, Any]:
        from benchmarks.search.peers import _Stub

        self.trials[trial] = _Stub(trial)
        self.scheduler.on_trial_add(None, self.trials[trial])
        return dict(self.search.suggest(str(trial)) or {})

    def goes_on(self, trial: int, length: int, loss: float) -> bool:
        result = {"training_iteration": length, "loss": loss}
        said = self.scheduler.on_trial_result(None, self.trials[trial], result)
        self.search.on_trial_result(str(trial), result)
        if said != "CONTINUE":
            self.search.on_trial_complete(str(trial), result)
        return bool(said == "CONTINUE")
