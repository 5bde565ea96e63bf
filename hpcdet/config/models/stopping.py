"""``searcher.stopping``: conditions for the early end of a trial or of the whole search."""

from __future__ import annotations

from typing import Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from hpcdet.config.models.fields import LengthField, Section


class Patience(Section):
    reports: int = Field(ge=1)
    """Ends a trial whose metric got no better in so many validations."""
    min_delta: float = Field(default=0.0, ge=0)
    """Better means: by more than this."""


class Threshold(Section):
    lower: float | None = None
    """Ends a trial whose metric falls below this."""
    upper: float | None = None
    """Ends a trial whose metric rises above this."""
    warmup: LengthField | None = None
    """Not before this length."""


class Median(Section):
    warmup: LengthField | None = None
    """Not before this length."""
    min_trials: int = Field(default=5, ge=1)
    """Not before so many other trials have come as far."""
    interval: LengthField | None = None
    """Lengths within such an interval are compared; equal ones only if absent."""


class Percentile(Median):
    keep: float = Field(gt=0, lt=100)
    """The best so many percent of the trials that have come as far go on."""


class Plateau(Section):
    reports: int = Field(ge=2)
    """Ends a trial whose last so many validations are all but equal."""
    std: float = Field(gt=0)
    """All but equal: their standard deviation is below this."""


class Wilcoxon(Section):
    p: float = Field(default=0.1, gt=0, lt=1)
    """Ends a trial that is worse than the best one with this probability of error; each
    validation is one fold or data set, the same at equal lengths of all trials."""
    min_pairs: int = Field(default=5, ge=2)
    """Not before so many validations."""


class Cost(Section):
    slot_hours: float = Field(gt=0)
    """Ends a trial that has trained so long, its slots added up."""


class Time(Section):
    hours: float = Field(gt=0)
    """Ends a trial that has trained so long, without waits in the queue."""


class NaN(Section):
    reports: int = Field(default=1, ge=1)
    """Ends a trial whose metric is no finite number in so many validations in a row."""


class Divergence(Section):
    factor: float = Field(default=3.0, gt=0)
    """Ends a trial that is worse than its best by so many times what it had gained."""
    reports: int = Field(default=1, ge=1)
    """In so many validations in a row."""


class Target(Section):
    value: float
    """Ends the search when the metric of a trial is as good as this."""


class NoImprovement(Section):
    trials: int = Field(ge=1)
    """Ends the search when so many trials in a row were no better than those before."""
    min_delta: float = Field(default=0.0, ge=0)
    """Better means: by more than this."""


class TotalLength(Section):
    length: LengthField
    """Ends the search when all trials together have trained so long."""


class Stopping(Section):
    patience: Patience | None = None
    threshold: Threshold | None = None
    median: Median | None = None
    percentile: Percentile | None = None
    plateau: Plateau | None = None
    wilcoxon: Wilcoxon | None = None
    cost: Cost | None = None
    time: Time | None = None
    nan: NaN | None = None
    divergence: Divergence | None = None
    target: Target | None = None
    no_improvement: NoImprovement | None = None
    total_length: TotalLength | None = None

    @model_serializer(mode="wrap")
    def _those_that_are_there(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if value is not None}
