"""Keys of ``searcher``: the method, its limits, its rungs and what it begins from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from hpcdet.goals import Goals, goals
from hpcdet.rungs import Bracket, adaptive, depth, hyperband, one
from hpcdet.store.config.sections.stopping_keys import Stopping
from hpcdet.store.fs.typed_fields import Key, Seconds
from hpcdet.units import Length

WHOLE = ("bayesian", "nsga2")
"""Searchers that train each trial in full: the one rung is the end."""
HALVING = ("async_halving", "asha", "adaptive_asha", "hyperband", "pasha", "bohb", *WHOLE)
"""Searchers that compare trials at rungs."""
MODELLED: dict[str, Literal["tpe", "nsga2"]] = {"bayesian": "tpe", "bohb": "tpe", "nsga2": "nsga2"}
"""The sampler of those whose hyperparameters come from a model if nothing else is said."""

COPYING = ("pbt", "pb2")
"""Those whose trials are compared, and begin from each other's checkpoints, after each interval."""


@dataclass(frozen=True)
class Sampler:
    """``searcher.sampler``. None: what suits the searcher."""

    name: Literal["random", "tpe", "gp", "nsga2"] | None = None
    """Where hyperparameters come from: random, or what trials have shown; tpe for bayesian and
    bohb, nsga2 for nsga2, else random, if absent."""
    startup: Annotated[int | None, Key(ge=1)] = None
    """Results before the model is asked; two more than hyperparameters, at least 8, if absent."""
    random_fraction: Annotated[float | None, Key(ge=0, le=1)] = None
    """Of suggestions that stay random; a third where trials are compared at rungs, else none."""
    population_size: Annotated[int | None, Key(ge=2, le=128)] = None
    """Parents of nsga2; a fifth of max_trials, 8 to 50, if absent."""


@dataclass(frozen=True)
class Objective:
    metric: Annotated[str, Key(min_length=1)]
    """A validation metric."""
    smaller_is_better: bool = True
    """Whether a smaller value of it is the better one."""


@dataclass(frozen=True)
class Constraint:
    metric: Annotated[str, Key(min_length=1)]
    """A validation metric."""
    lower: Annotated[float | None, Key(allow_inf_nan=False)] = None
    """The least that it may be."""
    upper: Annotated[float | None, Key(allow_inf_nan=False)] = None
    """The most that it may be."""
    tolerance: Annotated[float, Key(ge=0, allow_inf_nan=False)] = 0.0
    """Beyond a bound by as much still keeps it; also the unit in which what goes further counts."""
    warmup: Length | None = None
    """Not before this length."""
    mode: Literal["soft", "hard", "stop"] = "soft"
    """soft: trials that break it rank behind those that do not; hard: they end; stop: the
    experiment pauses, too, until its user has looked at it and resumes it."""
    origin: Annotated[Literal["policy"] | None, Key(sparse=True)] = None
    """policy: the experiment's policy asks for it; filled in when the experiment is made."""


@dataclass(frozen=True)
class Step:
    until: Length
    """Train until this length of the whole training …"""
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    """… with these hyperparameters, as they are."""


@dataclass(frozen=True)
class Schedule:
    """``searcher.schedule``: the steps as they are written, ``until`` and ``hyperparameters``."""

    seed: Annotated[int | None, Key(ge=0)] = None
    """Seed of the training; drawn by the experiment's if absent."""
    steps: Annotated[list[dict[str, Any]], Key(kind=list[Step])] = field(default_factory=list)
    """Stretches of training, each from the checkpoint of the one before."""


@dataclass(frozen=True)
class WarmStart:
    """``searcher.warm_start``. ``trials``: None takes all; ``best``: how many are tried again."""

    experiments: Annotated[list[str], Key(required=True, min_length=1)] = field(
        default_factory=list
    )
    """Former experiments with the same metric and, for the trials that count, the same space."""
    trials: Annotated[int | None, Key(ge=1)] = None
    """At most so many of their trials: those that trained farthest, the best of them; null: all."""
    best: Annotated[int, Key(ge=0)] = 0
    """The hyperparameters of so many of the best are tried again first."""


@dataclass(frozen=True)
class Searcher:
    """``searcher``. ``max_length`` is None where the user's code decides its own length.

    ``stopping``: policies by their names, each with its keys; ``stopping_version`` is 1 in searches
    from before there was one (``search.stopping.rules_from_config.NEWEST``).
    ``max_time`` counts in the metric ``time_metric``, where there is one, and else is None.
    ``promotion_share`` is None, no limit, in searches from before there was one, and
    ``rule_version`` 4 (``search.halving.halving``).
    ``begin_at``: how far the checkpoint of ``begin_from`` is; None in searches from before it was
    written down.
    ``first_length``: ``max_length`` as it was submitted, where a user has changed it since.
    ``objectives``: where there are several; ``metric`` is the first of them then.
    """

    name: Literal[
        "single",
        "random",
        "grid",
        "bayesian",
        "async_halving",
        "asha",
        "adaptive_asha",
        "hyperband",
        "pasha",
        "bohb",
        "nsga2",
        "pbt",
        "pb2",
        "schedule",
        "custom",
    ] = "single"
    """single: one trial; random: max_trials; grid: all points; see docs/guides/search.md."""
    metric: Annotated[str, Key(min_length=1)] = "validation_loss"
    """The validation metric that decides which trial and checkpoint is best."""
    smaller_is_better: bool = True
    """Whether a smaller value of the metric is the better one."""
    objectives: Annotated[list[dict[str, Any]], Key(kind=list[Objective])] = field(
        default_factory=list
    )
    """Instead of metric and smaller_is_better, where several metrics are to be good at once."""
    constraints: Annotated[list[dict[str, Any]], Key(kind=list[Constraint])] = field(
        default_factory=list
    )
    """Bounds of metrics that trials have to keep."""
    max_length: Length | None = None
    """How long each trial trains. Without it the code decides (commands only)."""
    max_trials: Annotated[int, Key(kind=int | None, new=None, ge=1)] = 1
    """How many trials a search makes; those with InvalidHP do not count."""
    max_concurrent_trials: Annotated[int, Key(ge=0)] = 16
    """How many trials are open at once; 0: no limit."""
    max_time: Annotated[int | None, Key(ge=1)] = None
    """The whole training in units of time_metric; of batches, records, epochs: max_length."""
    time_metric: Annotated[str | None, Key(min_length=1)] = None
    """A validation metric that says how far a trial is, where the code counts by itself."""
    rule: Literal["hybrid", "stopping", "promotion", "cohorts"] = "hybrid"
    """What becomes of a trial at a rung: the best go on in place, others are paused (hybrid) or
    stopped; promotion pauses all of them first; cohorts decides later, on more trials."""
    promotion_share: Annotated[float | None, Key(new=0.5, ge=0)] = None
    """Until all trials were made, hybrid promotes paused ones only while fewer than this share of
    those that may go on have gone on; null: whenever they are among the best."""
    rule_version: Annotated[Literal[4, 5, 6], Key(new=6)] = 4
    """How rules are kept: 6; 4, 5 as in old experiments (docs/guides/search-rungs.md)."""
    divisor: Annotated[float, Key(gt=1)] = 4
    """Of this many trials at a rung one goes on."""
    num_rungs: Annotated[int | None, Key(ge=1, le=1000)] = None
    """Rungs of async_halving and pasha; as many as fit into the length, but 5, if absent."""
    max_rungs: Annotated[int, Key(ge=1, le=1000)] = 5
    """Most rungs of a bracket (adaptive_asha, hyperband)."""
    mode: Literal["aggressive", "standard", "conservative"] = "standard"
    """How early adaptive_asha stops trials: all of them, or brackets with fewer rungs, too."""
    bracket_rungs: list[Annotated[int, Key(ge=1, le=1000)]] = field(default_factory=list)
    """Numbers of rungs of adaptive_asha's brackets, instead of mode."""
    population_size: Annotated[int | None, Key(ge=2)] = None
    """Trials that pbt trains side by side, and copies."""
    perturbation_interval: Length | None = None
    """Length after which pbt compares them; a tenth of max_length if absent."""
    quantile: Annotated[float, Key(gt=0, le=0.5)] = 0.2
    """Share of the population that is given up then, and that may be copied into its place."""
    resample_probability: Annotated[float, Key(ge=0, le=1)] = 0.25
    """Of each hyperparameter of a copy, to be drawn anew; else it moves to a neighbour."""
    factors: Annotated[list[Annotated[float, Key(gt=0)]], Key(min_length=1)] = field(
        default_factory=lambda: [0.8, 1.2]
    )
    """By which numbers among them are multiplied, each as likely as the next."""
    synchronous: bool = False
    """Whether pbt waits for the whole population after each interval."""
    schedule: Schedule = field(default_factory=Schedule)
    sampler: Sampler = Sampler()
    initial: list[dict[str, Any]] = field(default_factory=list)
    """Hyperparameters of the first trials, one map for each; what a map leaves out is drawn."""
    warm_start: WarmStart | None = None
    begin_from: Annotated[str | None, Key(min_length=1)] = None
    """A checkpoint that all trials go on from: ID/3 (trial 3's newest), ID/3@400 batches, or
    model:NAME:3 (a version of a registered model; model:NAME@ALIAS, model:NAME@^1.4)."""
    begin_at: Length | None = None
    """How far that checkpoint is; filled in when the experiment is made."""
    stopping: Annotated[dict[str, dict[str, Any]], Key(kind=Stopping, new=Stopping())] = field(
        default_factory=dict
    )
    stopping_version: Annotated[Literal[1, 2], Key(new=2)] = 1
    """By which rules stopping ends things: 2. Experiments of former versions have 1 and keep it: it
    lets pass what is not finite, and counts what trials inherited."""
    program: str | list[str] | None = None
    """The searcher of name: custom: module:Class of the code, or a command that answers lines."""
    options: dict[str, Any] = field(default_factory=dict)
    """Given to a custom searcher as they are."""
    answer_within_s: Annotated[Seconds, Key(ge=1)] = 60
    """Time that a custom searcher has for an answer, in seconds or as '5m'."""
    wait_at_rungs_s: Annotated[Seconds, Key(ge=0)] = 0
    """The longest wait for a decision at a rung, where the next rung would come first; 0: none."""
    first_length: Annotated[Length | None, Key(own=True)] = None

    @property
    def goals(self) -> Goals:
        """The objectives and constraints of the search."""
        alone = {"metric": self.metric, "smaller_is_better": self.smaller_is_better}
        return goals(self.objectives or [alone], self.constraints)

    @property
    def top(self) -> int | None:
        """The length of the whole training in the unit of the rungs; None if it is unknown."""
        if self.time_metric is not None:
            return self.max_time
        length = self.first_length or self.max_length
        return length.value if length else None

    @property
    def brackets(self) -> list[Bracket]:
        """The ladders of rungs that trials climb; none where trials are not compared."""
        top, open_at_once = self.top, self.max_concurrent_trials
        if top is None:
            return []
        if self.name in ("async_halving", "asha", "pasha"):
            count = self.num_rungs or depth(top, self.divisor, self.max_rungs)
            return [one(top, self.divisor, count, self.max_trials, open_at_once)]
        if self.name == "adaptive_asha":
            return adaptive(
                top,
                self.divisor,
                self.mode,
                self.max_rungs,
                self.bracket_rungs,
                self.max_trials,
                open_at_once,
            )
        if self.name in WHOLE:
            return [one(top, self.divisor, 1, self.max_trials, open_at_once)]
        if self.name in ("hyperband", "bohb"):
            return hyperband(top, self.divisor, self.max_rungs, self.max_trials, open_at_once)
        return []

    @property
    def interval(self) -> int:
        """The length between comparisons of a population, in units of ``max_length``; 0: none."""
        if self.name not in COPYING or self.max_length is None:
            return 0
        asked = self.perturbation_interval
        return asked.value if asked else max((self.first_length or self.max_length).value // 10, 1)

    @property
    def compared_every(self) -> Length | None:
        """``interval`` with its unit; None where there is no population."""
        length = self.max_length
        return Length(length.unit, self.interval) if length and self.interval else None

    @property
    def saves_at_rungs(self) -> bool:
        """True if a trial must save a checkpoint at each rung, for others to begin from."""
        return self.name in COPYING

    @property
    def rungs(self) -> list[Length]:
        """The lengths at which each trial is validated, ascending, in units of ``max_length``."""
        if self.max_length is None or self.time_metric is not None:
            return []
        if self.interval:
            last = self.max_length.value
            ends = [*range(self.interval, last, self.interval), last]
            return [Length(self.max_length.unit, length) for length in ends]
        found = {length for bracket in self.brackets for length in bracket.rungs}
        found |= {self.max_length.value} if found else set()
        return [Length(self.max_length.unit, length) for length in sorted(found)]
