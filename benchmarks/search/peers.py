"""The peers' own code, driven without a cluster: one report in, goes on or not.

Records of earlier trials are put where each library keeps them, so that a decision at 100,000
trials can be timed without the hours that it would take to come there. Runs in the peers' venv.
"""

from __future__ import annotations

import datetime
import logging
import warnings
from collections.abc import Mapping
from typing import Any, Protocol

import optuna
from ray.tune.schedulers import AsyncHyperBandScheduler
from syne_tune.backend.trial_status import Trial as SyneTrial
from syne_tune.config_space import uniform
from syne_tune.optimizer.schedulers.asha import AsynchronousSuccessiveHalving

from benchmarks.search.rules import Ladder

logging.disable(logging.CRITICAL)
warnings.filterwarnings("ignore")
optuna.logging.set_verbosity(optuna.logging.ERROR)

Records = Mapping[int, list[float]]
"""Losses at each rung, of trials numbered from 0 at each."""


class Peer(Protocol):
    """``begin`` is not timed, ``decide`` is."""

    def fill(self, records: Records) -> None: ...

    def begin(self, trial: int) -> None: ...

    def decide(self, trial: int, length: int, loss: float) -> bool: ...


class _Stub:
    """What Ray's scheduler looks at of a trial."""

    def __init__(self, number: int) -> None:
        self.trial_id = str(number)


class Ray:
    def __init__(self, ladder: Ladder) -> None:
        self.scheduler = AsyncHyperBandScheduler(
            time_attr="t",
            metric="loss",
            mode="min",
            max_t=ladder.full,
            grace_period=ladder.rungs[0],
            reduction_factor=ladder.eta,
        )
        self.trials: dict[int, _Stub] = {}

    def fill(self, records: Records) -> None:
        rungs = dict(self.scheduler._brackets[0]._rungs)
        for length, losses in records.items():
            rungs[length].update({f"old{n}": -loss for n, loss in enumerate(losses)})

    def begin(self, trial: int) -> None:
        self.trials[trial] = _Stub(trial)
        self.scheduler.on_trial_add(None, self.trials[trial])

    def decide(self, trial: int, length: int, loss: float) -> bool:
        result = {"t": length, "loss": loss}
        return self.scheduler.on_trial_result(None, self.trials[trial], result) == "CONTINUE"


class Syne:
    def __init__(self, ladder: Ladder) -> None:
        self.scheduler = AsynchronousSuccessiveHalving(
            {"x": uniform(0, 1)},
            metric="loss",
            time_attr="t",
            max_t=ladder.full,
            grace_period=ladder.rungs[0],
            reduction_factor=ladder.eta,
            random_seed=0,
        )
        self.trials: dict[int, SyneTrial] = {}

    def fill(self, records: Records) -> None:
        rungs = dict(self.scheduler.brackets[0].rungs)
        for length, losses in records.items():
            rungs[length].update({-1 - n: {"loss": loss} for n, loss in enumerate(losses)})

    def begin(self, trial: int) -> None:
        made = SyneTrial(trial, {"x": 0.5}, datetime.datetime.now())
        self.trials[trial] = made
        self.scheduler.on_trial_add(made)

    def decide(self, trial: int, length: int, loss: float) -> bool:
        result = {"t": length, "loss": loss}
        return self.scheduler.on_trial_result(self.trials[trial], result) == "CONTINUE"


class Optuna:
    """``should_prune`` of a study in memory; trials are numbered as the study numbers them."""

    def __init__(self, ladder: Ladder, hyperband: bool = False) -> None:
        lowest, eta = ladder.rungs[0], ladder.eta
        pruner: optuna.pruners.BasePruner = (
            optuna.pruners.HyperbandPruner(lowest, ladder.full, eta)
            if hyperband
            else optuna.pruners.SuccessiveHalvingPruner(lowest, eta)
        )
        sampler = optuna.samplers.RandomSampler(seed=0)
        self.study = optuna.create_study(study_name="study", pruner=pruner, sampler=sampler)
        self.rungs = ladder.rungs
        self.trials: dict[int, Any] = {}

    def fill(self, records: Records) -> None:
        made = []
        for n in range(len(records[self.rungs[0]])):
            reached = [r for r in self.rungs if n < len(records[r])]
            made.append(
                optuna.trial.create_trial(
                    state=optuna.trial.TrialState.PRUNED,
                    intermediate_values={r: records[r][n] for r in reached},
                    system_attrs={
                        f"completed_rung_{k}": records[r][n] for k, r in enumerate(reached)
                    },
                )
            )
        self.study.add_trials(made)

    def begin(self, trial: int) -> None:
        self.trials[trial] = self.study.ask()

    def decide(self, trial: int, length: int, loss: float) -> bool:
        self.trials[trial].report(loss, length)
        return not self.trials[trial].should_prune()


PEERS = {
    "Ray ASHA": Ray,
    "Syne Tune ASHA": Syne,
    "Optuna halving": Optuna,
    "Optuna Hyperband": lambda ladder: Optuna(ladder, hyperband=True),
}
