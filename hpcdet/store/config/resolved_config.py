"""The resolved config of an experiment, ``experiment.yaml``, as both towers read it.

``submit`` writes it once with every default filled in, after the login tower's models
(``hpcdet.config``) have checked it. Here it is only read, without pydantic: unknown keys are
ignored and missing ones take their default, so that a folder made by another version of
hpcdet stays readable.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from hpcdet.errors import ConfigError, IntegrityError
from hpcdet.goals import Goals, goals
from hpcdet.rungs import Bracket, Mode, adaptive, depth, hyperband, one
from hpcdet.store.config.placement import Distributed, Pbs, Slurm
from hpcdet.store.config.placement import Fsdp2 as Fsdp2
from hpcdet.store.config.placement import Resources as Resources
from hpcdet.store.fs import files, typed_fields, yaml_bounds
from hpcdet.units import Length

_HINT = "hpcdet writes it once and never changes it: put it back from a backup"

_NO_PERIOD = Length("batches", 0)

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
    startup: int | None = None
    random_fraction: float | None = None
    population_size: int | None = None


@dataclass(frozen=True)
class Schedule:
    """``searcher.schedule``: the steps as they are written, ``until`` and ``hyperparameters``."""

    seed: int | None = None
    steps: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class WarmStart:
    """``searcher.warm_start``. ``trials``: None takes all; ``best``: how many are tried again."""

    experiments: list[str] = field(default_factory=list)
    trials: int | None = None
    best: int = 0


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

    name: str = "single"
    metric: str = "validation_loss"
    smaller_is_better: bool = True
    max_length: Length | None = None
    max_trials: int = 1
    max_concurrent_trials: int = 16
    max_time: int | None = None
    time_metric: str | None = None
    rule: Literal["hybrid", "stopping", "promotion", "cohorts"] = "hybrid"
    promotion_share: float | None = None
    rule_version: int = 4
    divisor: float = 4
    num_rungs: int | None = None
    max_rungs: int = 5
    mode: Mode = "standard"
    bracket_rungs: list[int] = field(default_factory=list)
    population_size: int | None = None
    perturbation_interval: Length | None = None
    quantile: float = 0.2
    resample_probability: float = 0.25
    factors: list[float] = field(default_factory=lambda: [0.8, 1.2])
    synchronous: bool = False
    schedule: Schedule = field(default_factory=Schedule)
    sampler: Sampler = Sampler()
    initial: list[dict[str, Any]] = field(default_factory=list)
    warm_start: WarmStart | None = None
    begin_from: str | None = None
    begin_at: Length | None = None
    stopping: dict[str, dict[str, Any]] = field(default_factory=dict)
    stopping_version: int = 1
    program: str | list[str] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    answer_within_s: float = 60
    wait_at_rungs_s: int = 0
    first_length: Length | None = None
    objectives: list[dict[str, Any]] = field(default_factory=list)
    constraints: list[dict[str, Any]] = field(default_factory=list)

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


@dataclass(frozen=True)
class Reproducibility:
    """``virtual_ranks``: None, as of experiments made without it, means ``slots_per_trial``."""

    experiment_seed: int = 0
    deterministic: bool = False
    elastic: Literal["exact"] | None = None
    virtual_ranks: int | None = None


@dataclass(frozen=True)
class CheckpointStorage:
    type: str = "shared_fs"
    host_path: str | None = None
    storage_path: str | None = None
    save_experiment_best: int = 0
    save_trial_best: int = 1
    save_trial_latest: int = 1
    local_staging: str | None = None
    max_paused_bytes: int | None = None


@dataclass(frozen=True)
class PowerSGD:
    """``optimizations.powersgd``. ``start_step`` counts steps of the optimizer."""

    rank: int = 1
    start_step: int = 1000


@dataclass(frozen=True)
class Optimizations:
    aggregation_frequency: int = 1
    average_aggregated_gradients: bool = True
    average_training_metrics: bool = True
    mixed_precision: str = "O0"
    gradient_compression: bool | Literal["fp16", "bf16", "powersgd"] = False
    powersgd: PowerSGD = PowerSGD()
    activation_checkpointing: Literal["none", "full"] | list[str] = "none"
    compile: bool | dict[str, Any] = False


@dataclass(frozen=True)
class Worker:
    """``worker``. Times in seconds.

    ``lanes`` is a number once the experiment has been made; ``spares``: None leaves it to
    ``control.fleet.worker_count``.
    """

    mode: Literal["shared", "per_trial"] = "shared"
    lanes: int | Literal["auto"] = 1
    min_segment_s: float = 300
    idle_s: float = 120
    spares: int | None = None


@dataclass(frozen=True)
class Budget:
    """``budget`` of the whole experiment; None: no bound."""

    slot_hours: float | None = None
    wall_s: float | None = None


@dataclass(frozen=True)
class Environment:
    """``environment``. ``python`` is the interpreter on the nodes; None: the site's."""

    environment_variables: dict[str, str] = field(default_factory=dict)
    image: str | None = None
    python: str | None = None
    cpu_variables: dict[str, str] = field(default_factory=dict)
    cuda_variables: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Notify:
    command: str | list[str] | None = None
    on: list[str] = field(default_factory=lambda: ["end", "failure", "stuck"])


@dataclass(frozen=True)
class Profiling:
    """``profiling``. ``end_after_batch``: None means the default of ``pytorch``."""

    measure: bool = True
    enabled: bool = False
    begin_on_batch: int = 0
    end_after_batch: int | None = None
    sync_timings: bool = True


@dataclass(frozen=True)
class Compat:
    """``compat``. ``determined``: whether hpcdet stands in for the package of that name."""

    determined: Literal["auto", "off"] = "auto"


@dataclass(frozen=True)
class Resolved:
    """A whole experiment config.

    Attributes:
        entrypoint: ``module:Class``, a command for ``sh -c``, or an argv list.
        hyperparameters: the search space as written (``search.space`` reads it).
        min_validation_period: 0 of any unit means only at the end.
        min_checkpoint_period: likewise; resume checkpoints by time are ``checkpoint_every_s``.
        raw: the file as plain data, with keys that this version does not know.
    """

    schema: int = 1
    name: str = ""
    description: str = ""
    labels: list[str] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    workspace: str | None = None
    project: str | None = None
    entrypoint: str | list[str] = ""
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    searcher: Searcher = Searcher()
    max_restarts: int = 5
    reproducibility: Reproducibility = Reproducibility()
    min_validation_period: Length = _NO_PERIOD
    min_checkpoint_period: Length = _NO_PERIOD
    checkpoint_every_s: float = 600
    perform_initial_validation: bool = False
    scheduling_unit: int = 100
    records_per_epoch: int = 0
    checkpoint_policy: Literal["best", "all", "none"] = "best"
    checkpoint_storage: CheckpointStorage = CheckpointStorage()
    optimizations: Optimizations = Optimizations()
    resources: Resources = field(default_factory=Resources)
    distributed: Distributed = field(default_factory=Distributed)
    worker: Worker = Worker()
    budget: Budget = Budget()
    environment: Environment = field(default_factory=Environment)
    notify: Notify = field(default_factory=Notify)
    on_env_change: Literal["warn", "refuse"] = "warn"
    on_unregistered: Literal["warn", "refuse"] = "warn"
    slurm: Slurm = field(default_factory=Slurm)
    pbs: Pbs = field(default_factory=Pbs)
    profiling: Profiling = Profiling()
    compat: Compat = Compat()
    debug: bool = False
    site: str | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def lanes(self) -> int:
        """The number of trials side by side in one allocation: no more than may ever run at once.

        Raises:
            ConfigError: ``worker.lanes`` is ``auto``, and was not resolved for the site.
        """
        asked, searcher = self.worker.lanes, self.searcher
        if not isinstance(asked, int):
            hint = "write the number of trials that fit into a node"
            raise ConfigError(f"{asked!r} is no number", where="worker.lanes", hint=hint)
        bounds = [asked, searcher.max_trials, searcher.max_concurrent_trials or asked]
        if self.resources.max_slots is not None:
            bounds.append(self.resources.max_slots // self.resources.slots_per_trial)
        return max(1, min(bounds))


def load(path: Path) -> Resolved:
    """Return the resolved config in a file.

    Raises:
        ConfigError: the file is not there, is no YAML mapping, or holds a length that is none.
    """
    try:
        return resolve(yaml_bounds.mapping(path))
    except OSError as error:
        what = f"cannot read the config: {error.strerror}"
        raise ConfigError(what, where=str(path), hint=_HINT) from error
    except IntegrityError as error:
        what = f"cannot read the config: {error.what}"
        raise ConfigError(what, where=str(path), hint=error.hint) from error
    except (yaml.YAMLError, ValueError) as error:
        what = " ".join(str(error).split())  # YAML's errors have several lines
        raise ConfigError(f"the config is damaged: {what}", where=str(path), hint=_HINT) from error


def resolve(value: Mapping[str, Any]) -> Resolved:
    """Return the typed form of a resolved config given as plain data."""
    return dataclasses.replace(typed_fields.build(Resolved, value), raw=value)


def dump(value: Mapping[str, Any]) -> bytes:
    """Return the text of ``experiment.yaml`` for a resolved config given as plain data."""
    text = yaml.safe_dump(dict(value), sort_keys=False, allow_unicode=True, width=100)
    return text.encode()


def digest(path: Path) -> str:
    """Return the SHA-256 of a file as 64 hex digits, by which workers recognize their config."""
    return hashlib.sha256(files.read(path)).hexdigest()
