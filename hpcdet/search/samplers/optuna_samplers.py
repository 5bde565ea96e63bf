"""Suggestions from what trials have shown: Optuna's TPE, GP and NSGA-II as pure functions.

Optuna's storage, pruners and loop are not used. For each suggestion a new sampler, seeded with the
experiment's seed and the trial's number, sees a projection of the search:

* The rung that it models is the highest one with enough finite observations, as in BOHB (Falkner
  et al., ICML 2018, section 3.3). What trials showed there is their result.
* Trials that have not come so far are known to be worse, in the order of how far they came.
* With several objectives there is no such order: what has not come to that rung is left out.
* Constraints are told as what a trial exceeds them by; Optuna keeps infeasible trials apart.
* Open trials that have shown nothing yet are taken for bad, so that places that become free at
  the same time are not all filled from one spot.

NSGA-II has no generations here, as trials end one by one: parents are the ``population`` best of
all that is known (its steady-state form), and each suggestion is one child of theirs.
"""

from __future__ import annotations

import functools
import itertools
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from hpcdet.errors import ConfigError
from hpcdet.search.api.sampling import Observation, View
from hpcdet.space.domains import (
    Categorical,
    Const,
    Domain,
    Double,
    Int,
    Log,
    LogInt,
    LogUniform,
    uniform,
)
from hpcdet.space.errors import dotted
from hpcdet.space.space import MAX_REDRAWS, Space, bits
from hpcdet.space.space_tree import Axis
from hpcdet.space.unit_scale import index_of

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

Model = Literal["tpe", "gp", "nsga2"]

BEST, RECENT, OPEN = 128, 192, 64
"""Trials that a model sees at most: the best at its rung, the last ones, open ones. Its cost and
its memory are bounded by their sum, whatever the number of trials."""

Shown = tuple[Observation, bool] | None
"""What a model sees of a trial: what it has shown, whether at the rung that is modelled; or None
of one that is open and has shown nothing."""


def population(trials: int) -> int:
    """Return the default number of NSGA-II's parents for a number of trials."""
    return min(max(trials // 5, 8), 50)


@functools.cache
def library() -> Any:
    """Optuna, quiet.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise ConfigError(
            "this sampler needs Optuna, which is not installed",
            where="searcher.sampler",
            hint="pip install 'hpcdet[search]'",
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna


@dataclass(frozen=True)
class ModelBased:
    """Suggests by a model once there is something to learn from, and at random now and then.

    Attributes:
        model: ``tpe``, tree-structured Parzen estimators over all hyperparameters together
            (Bergstra et al., NeurIPS 2011); ``gp``, a Gaussian process with expected improvement;
            ``nsga2``, children of the best (Deb et al., IEEE TEVC 2002).
        startup: observations at one rung before the model is asked; 0: two more than there are
            hyperparameters, at least 8. Of ``nsga2`` it is the ``population`` at least.
        random_fraction: of suggestions that stay random (BOHB's rho).
    """

    space: Space
    seed: int
    model: Model = "tpe"
    startup: int = 0
    random_fraction: float = 1 / 3
    objectives: int = 1
    population: int = 50
    learns: bool = field(default=True, init=False)
    _seen: dict[tuple[int, Shown], FrozenTrial] = field(
        default_factory=dict, init=False, compare=False
    )

    @property
    def name(self) -> str:
        return self.model

    @property
    def constant(self) -> bool:
        return self.space.constant

    def suggest(self, view: View, number: int) -> dict[str, Any]:
        """Raises as ``Space.sample``, and ConfigError where Optuna is not installed."""
        known = [] if self._draws(number) else self._project(view)
        if not known:
            return self.space.sample(self.seed, number)
        for redraw in range(MAX_REDRAWS):
            study = _study(self._sampler(number, redraw), known, self.objectives)
            found = self.space.build(_Draw(study, number, self._together))
            if found is not None:
                return found
        return self.space.sample(self.seed, number)

    def has_learned(self, view: View, number: int) -> bool:
        """True if the model suggests this trial's hyperparameters."""
        return not self._draws(number) and bool(self._results(view)[1])

    @functools.cached_property
    def _together(self) -> dict[str, BaseDistribution] | None:
        """The distributions that are modelled together; None where they differ between trials.

        Without conditions all trials have everything. To find that out Optuna would compare the
        distributions of all trials, for each suggestion.
        """
        if self.space.conditional:
            return None
        found = {dotted(axis.at): to_distribution(domain) for axis, domain in self.space.axes}
        return {name: found[name] for name in sorted(found) if not found[name].single()}

    def _draws(self, number: int) -> bool:
        return uniform(bits(self.seed, number, ("", "model"))) < self.random_fraction

    def _sampler(self, number: int, redraw: int) -> optuna.samplers.BaseSampler:
        """Every argument is given: their defaults change from version to version."""
        samplers = library().samplers
        seed = bits(self.seed, number, ("", "sampler"), redraw) >> 97
        if self.model == "gp":
            return samplers.GPSampler(  # type: ignore[no-any-return]
                seed=seed, n_startup_trials=0, deterministic_objective=False
            )
        if self.model == "nsga2":
            return samplers.NSGAIISampler(  # type: ignore[no-any-return]
                seed=seed,
                population_size=self.population,
                mutation=None,
                mutation_prob=None,
                crossover=samplers.nsgaii.UniformCrossover(swapping_prob=0.5),
                crossover_prob=0.9,
                swapping_prob=0.5,
            )
        return samplers.TPESampler(  # type: ignore[no-any-return]
            seed=seed,
            n_startup_trials=0,
            n_ei_candidates=24,
            multivariate=True,
            group=self.space.conditional,
            constant_liar=True,
        )

    def _project(self, view: View) -> list[FrozenTrial]:
        """Return the observations for the model; none while there are too few."""
        most, at_rung = self._results(view)
        if not at_rung:
            return []
        params = view.params()
        best = list(itertools.islice(at_rung, BEST))  # of one length: best first
        known = at_rung.keys() if self.objectives > 1 else most.keys()
        recent = sorted(known - set(best))[-RECENT:]
        silent = [trial for trial in view.open() if trial not in most][-OPEN:]
        trials = []
        for trial in [*best, *recent, *silent]:
            shown: Shown = None
            if trial in at_rung:
                shown = at_rung[trial], True
            elif trial in most:
                shown = most[trial], False
            trials.append(self._frozen(trial, shown, params[trial]))
        return trials

    def _results(self, view: View) -> tuple[dict[int, Observation], dict[int, Observation]]:
        """The farthest observation of each trial, and those at the rung that is modelled."""
        most: dict[int, Observation] = {}
        at_rung: dict[int, Observation] = {}
        for _, group in itertools.groupby(view.observations(self.most), lambda seen: seen.length):
            finite: dict[int, Observation] = {}
            for seen in group:
                most.setdefault(seen.trial, seen)
                if seen.loss is not None:
                    finite[seen.trial] = seen
            if not at_rung and len(finite) >= self._enough:
                at_rung = finite
        return most, at_rung

    @property
    def most(self) -> int:
        """Return the best and the latest observations of each length; see ``View``."""
        return max(BEST + RECENT, self._enough)

    @property
    def _enough(self) -> int:
        if self.model == "nsga2":
            return max(self.startup, self.population)
        return self.startup or max(self.space.dimensions + 2, 8)

    def _frozen(self, trial: int, shown: Shown, params: Mapping[str, Any]) -> FrozenTrial:
        """Made once for each trial and what is known of it."""
        if len(self._seen) > 4 * (BEST + RECENT + OPEN):
            self._seen.clear()
        frozen = self._seen.get((trial, shown))
        if frozen is None:
            frozen = self._seen[trial, shown] = _trial(trial, shown, self.space.drawn(params))
        return frozen


class _Draw:
    """Chooses the values of one suggestion, as ``Space.build`` asks for them."""

    def __init__(
        self, study: optuna.Study, number: int, together: dict[str, BaseDistribution] | None
    ) -> None:
        self.sampler = sampler = study.sampler
        self.study = study
        self.trial = _trial(number, None, [])
        if together is None:
            together = sampler.infer_relative_search_space(self.study, self.trial)
        self.together = sampler.sample_relative(self.study, self.trial, together)

    def __call__(self, axis: Axis, domain: Domain) -> Any:
        if isinstance(domain, Const):
            return domain.val
        name, distribution = dotted(axis.at), to_distribution(domain)
        value = self.together.get(name)
        if value is None or not distribution._contains(distribution.to_internal_repr(value)):
            value = self.sampler.sample_independent(self.study, self.trial, name, distribution)
        self.trial.params[name] = value
        self.trial.distributions[name] = distribution
        return from_value(domain, value)


def _study(sampler: Any, known: list[FrozenTrial], objectives: int) -> optuna.Study:
    optuna = library()

    class Projection(optuna.storages.InMemoryStorage):  # type: ignore[misc, name-defined]
        """Gives the trials as they are, without the copies that Optuna's makes of each."""

        def get_all_trials(self, study_id: int, deepcopy: bool = True, states: Any = None) -> Any:
            return [trial for trial in known if states is None or trial.state in states]

        def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
            """Notes of a sampler for other processes; there are none."""

    return optuna.create_study(  # type: ignore[no-any-return]
        storage=Projection(), sampler=sampler, directions=["minimize"] * objectives
    )


def _trial(number: int, shown: Shown, drawn: list[tuple[Axis, Domain, Any]]) -> FrozenTrial:
    """A trial for Optuna: with a result, or how far it came with what, or running."""
    optuna = library()
    states = optuna.trial.TrialState
    state, values, steps, notes = states.RUNNING, None, {}, {}
    seen, whole = shown or (None, False)
    if seen is not None and whole:
        state, values = states.COMPLETE, seen.losses or (seen.loss,)
        # all that have a result are one generation, of which the best are the next one's parents
        notes[optuna.samplers.NSGAIISampler._get_generation_key()] = 0
    elif seen is not None:
        state = states.PRUNED
        steps = {seen.length: seen.loss} if seen.loss is not None else {0: math.inf}
    drawn = [item for item in drawn if not isinstance(item[1], Const)]
    frozen: FrozenTrial = optuna.trial.FrozenTrial(
        number=number,
        trial_id=number,
        state=state,
        value=None,
        values=values,
        datetime_start=None,
        datetime_complete=None,
        params={dotted(axis.at): to_value(domain, value) for axis, domain, value in drawn},
        distributions={dotted(axis.at): to_distribution(domain) for axis, domain, _ in drawn},
        user_attrs={},
        system_attrs=notes,
        intermediate_values=steps,
    )
    for n, excess in enumerate(seen.excess if seen is not None else ()):
        frozen.set_constraint(str(n), excess)
    return frozen


def to_distribution(domain: Domain) -> BaseDistribution:
    """The distribution of Optuna that a domain is modelled by."""
    of = library().distributions
    match domain:
        case Int(minval, maxval, step):
            high = minval + (maxval - minval) // (step or 1) * (step or 1)
            return of.IntDistribution(minval, high, step=step or 1)  # type: ignore[no-any-return]
        case Double(minval, maxval):
            return of.FloatDistribution(  # type: ignore[no-any-return]
                minval, math.nextafter(maxval, minval)
            )
        case Log(minval, maxval):  # in its exponents: a base may be below one
            return of.FloatDistribution(minval, maxval)  # type: ignore[no-any-return]
        case LogUniform(low, high):
            return of.FloatDistribution(low, high, log=True)  # type: ignore[no-any-return]
        case LogInt(low, high):
            return of.IntDistribution(low, high, log=True)  # type: ignore[no-any-return]
        case Categorical(vals, ordered):
            if ordered:
                return of.IntDistribution(0, len(vals) - 1)  # type: ignore[no-any-return]
            return of.CategoricalDistribution(range(len(vals)))  # type: ignore[no-any-return]
    raise TypeError(f"no model of {domain!r}")


def to_value(domain: Domain, value: Any) -> Any:
    """The value of Optuna's that stands for a hyperparameter's."""
    match domain:
        case Log(minval, maxval, base):
            return min(max(math.log(value) / math.log(base), minval), maxval)
        case Categorical():
            return index_of(domain, value)
    return value


def from_value(domain: Domain, value: Any) -> Any:
    """The hyperparameter that a value of Optuna's stands for."""
    match domain:
        case Log(base=base):
            return float(f"{base**value:.12g}")
        case LogUniform(low, high):
            return min(max(float(f"{value:.12g}"), low), high)
        case Categorical(vals):
            return vals[value]
    return value
