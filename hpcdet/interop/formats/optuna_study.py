"""An Optuna study of an experiment, a trial for each of its trials (needs optuna)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from hpcdet.errors import UsageError
from hpcdet.interop.formats import exported
from hpcdet.interop.formats.exported import ExperimentExport, epoch
from hpcdet.interop.formats.exported_tables import as_json
from hpcdet.read.experiment import series
from hpcdet.read.experiment.gather import GatheredTrial
from hpcdet.space.domains import Categorical, Const, Domain, Double, Int, Log, LogInt, LogUniform
from hpcdet.space.errors import SpaceError, dotted
from hpcdet.space.expression import Inactive
from hpcdet.space.space import Space

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial, TrialState

ID = "hpcdet.id"
"""The attribute that makes exports idempotent: of a study its id, of a trial ``ID/TRIAL``."""


def export(what: ExperimentExport, to: str) -> str:
    """Write an Optuna study named ID; returns the address of the storage.

    Values are the best of each trial, as ``hpcdet best`` compares them, of all objectives;
    intermediate values are the validations of the first, by batches. Trials that the search ended
    early are ``PRUNED``. Trials are added to a study that is there; if some have changed, it is
    written anew.

    Args:
        to: the address of a storage, or a file: an SQLite storage.

    Raises:
        ImportError: there is no Optuna.
        UsageError: the storage has a study of that name that hpcdet did not write.
        Unavailable: the storage does not take it.
    """
    import optuna
    from sqlalchemy.exc import SQLAlchemyError

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    address = to if "://" in to else f"sqlite:///{exported.sqlite_file(to, 'optuna.db')}"
    wanted = _Trials(what).all()
    try:
        storage = optuna.storages.get_storage(address)
        study = optuna.create_study(
            storage=storage,
            study_name=what.id,
            directions=_directions(what),
            load_if_exists=True,
        )
        there = study.get_trials(deepcopy=False)
        if there and study.user_attrs.get(ID) != what.id:
            hint = "name another storage, or rename that study"
            raise UsageError("a study of that name is not hpcdet's", where=to, hint=hint)
        if [*map(_signature, there)] != [*map(_signature, wanted[: len(there)])]:
            optuna.delete_study(study_name=what.id, storage=storage)
            study = optuna.create_study(
                storage=storage, study_name=what.id, directions=_directions(what)
            )
            there = []
        study.set_user_attr(ID, what.id)
        study.set_user_attr("hpcdet.metric", what.status.metric)
        with warnings.catch_warnings(
            action="ignore", category=optuna.exceptions.ExperimentalWarning
        ):
            study.set_metric_names(what.status.objectives)
        for done, trial in enumerate(wanted[len(there) :], len(there)):
            what.at(done / len(wanted))
            study.add_trial(trial)
    except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
        raise exported.refused("Optuna", error, to) from error
    return address


def _directions(what: ExperimentExport) -> list[Literal["minimize", "maximize"]]:
    goals = what.gathered.config.searcher.goals
    return ["minimize" if one.smaller_is_better else "maximize" for one in goals.objectives]


def _signature(trial: FrozenTrial) -> tuple[Any, ...]:
    """Return what tells if a trial of a study is the one that would be written."""
    middle = {step: repr(value) for step, value in trial.intermediate_values.items()}
    times = (trial.datetime_start, trial.datetime_complete)
    parts = (trial.state, trial.values, trial.params, trial.distributions, middle, times)
    return trial.user_attrs.get(ID), *parts


@dataclass(frozen=True)
class _Trials:
    """The trials of an experiment on their way into a study."""

    what: ExperimentExport

    def all(self) -> list[FrozenTrial]:
        return [self._trial(trial) for trial in self.what.gathered.trials]

    def _trial(self, trial: GatheredTrial) -> FrozenTrial:
        from optuna.trial import create_trial

        row = self.what.row(trial.number)
        values = self._values(trial.number)
        state = self._state(trial, values)
        drawn = self._drawn[trial.number]
        frozen = create_trial(
            state=state,
            values=values if state.name in ("COMPLETE", "PRUNED") else None,
            params=drawn,
            distributions={name: self._distributions[name] for name in drawn},
            user_attrs={
                ID: f"{self.what.id}/{trial.number}",
                "hpcdet.state": row.state,
                "hpcdet.seed": row.seed,
                "hpcdet.hyperparameters": row.hyperparameters,
            },
            intermediate_values=self._validations(trial) if len(self._metrics) == 1 else {},
        )
        start = row.start or (trial.record.created_at if trial.record else "")
        frozen.datetime_start = (
            _local(start or self.what.created) if state.name != "WAITING" else None
        )
        if state.is_finished():
            frozen.datetime_complete = _local(row.end or start or self.what.created)
        return frozen

    @property
    def _metrics(self) -> Sequence[str]:
        return self.what.status.objectives

    def _values(self, trial: int) -> list[float] | None:
        """Return the values of all objectives; None if one is not known."""
        row = self.what.row(trial)
        told = row.compared.objectives if row.compared else {}
        found = (
            [row.best] if len(self._metrics) == 1 else [told.get(name) for name in self._metrics]
        )
        numbers = [number for value in found if (number := series.number(value)) is not None]
        return numbers if len(numbers) == len(found) else None

    def _state(self, trial: GatheredTrial, values: Sequence[float] | None) -> TrialState:
        from optuna.trial import TrialState

        row = self.what.row(trial.number)
        match row.state:
            case "STOPPED":
                return TrialState.PRUNED
            case "COMPLETED" if values is not None:
                return TrialState.COMPLETE
            case "COMPLETED" | "ERROR" | "CANCELED":
                return TrialState.FAIL
        return TrialState.RUNNING if row.start else TrialState.WAITING

    def _validations(self, trial: GatheredTrial) -> dict[int, float]:
        found: dict[int, float] = {}
        for step, _, value in trial.validations(self._metrics[0]):
            number = exported.number(value)
            if number is not None:
                found[step] = number
        return found

    @cached_property
    def _space(self) -> Space | None:
        try:
            return Space(self.what.gathered.config.hyperparameters)
        except SpaceError as error:
            self.what.warn(f"Optuna gets no parameters: {error}")
            return None

    @cached_property
    def _drawn(self) -> Mapping[int, dict[str, Any]]:
        """By trial, the hyperparameters that were searched over, as Optuna can hold them."""
        found: dict[int, dict[str, Any]] = {}
        for trial in self.what.gathered.trials:
            params = trial.record.params if trial.record else {}
            try:
                drawn = self._space.drawn(params) if self._space and params else []
            except Inactive:  # of a search that was changed since
                drawn = []
            found[trial.number] = {
                dotted(axis.path): _choice(value) if isinstance(domain, Categorical) else value
                for axis, domain, value in drawn
                if not isinstance(domain, Const)
            }
        return found

    @cached_property
    def _distributions(self) -> Mapping[str, BaseDistribution]:
        """The distribution of each, wide enough for all values that trials have."""
        domains = (
            {dotted(axis.path): domain for axis, domain in self._space.axes} if self._space else {}
        )
        seen: dict[str, list[Any]] = {name: [] for name in domains}
        for params in self._drawn.values():
            for name, value in params.items():
                seen[name].append(value)
        return {name: _distribution(domain, seen[name]) for name, domain in domains.items()}


def _distribution(domain: Domain, seen: Sequence[Any]) -> BaseDistribution:
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    match domain:
        case Categorical():
            listed = [_choice(value) for value in domain.vals]
            told = {(type(value), value): value for value in (*listed, *seen)}
            return CategoricalDistribution([*told.values()])
        case Int(low, high):
            return IntDistribution(min(low, *seen, high), max(high, *seen, low))
        case LogInt(low, high):
            return IntDistribution(min(low, *seen, high), max(high, *seen, low), log=True)
        case Double(low, high):
            return FloatDistribution(min(low, *seen, high), max(high, *seen, low))
        case Log(low, high, base):
            ends = (base**low, base**high)
            return FloatDistribution(min(*ends, *seen), max(*ends, *seen), log=True)
        case LogUniform(low, high):
            return FloatDistribution(min(low, *seen, high), max(high, *seen, low), log=True)
    raise TypeError(f"a hyperparameter of an unknown kind: {type(domain).__name__}")


def _choice(value: Any) -> Any:
    """Return a choice as Optuna can store it: lists and the like as JSON."""
    return value if value is None or isinstance(value, bool | int | float | str) else as_json(value)


def _local(time: str) -> datetime:
    """Return a time as Optuna's: of this machine's zone, without saying so."""
    return datetime.fromtimestamp(epoch(time))
