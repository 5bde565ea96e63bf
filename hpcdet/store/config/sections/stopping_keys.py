"""Keys of ``searcher.stopping``: conditions for the early end of a trial or of the search.

``search.stopping`` has the rules themselves, with these fields. There a length is a number in the
unit of the search, and a bound that is absent is infinite.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from hpcdet.store.fs.typed_fields import Key
from hpcdet.units import Length


@dataclass(frozen=True)
class Patience:
    reports: Annotated[int, Key(ge=1)]
    """Ends a trial whose metric got no better in so many validations."""
    min_delta: Annotated[float, Key(ge=0)] = 0.0
    """Better means: by more than this."""


@dataclass(frozen=True)
class Threshold:
    lower: Annotated[float, Key(kind=float | None, new=None)] = -math.inf
    """Ends a trial whose metric falls below this."""
    upper: Annotated[float, Key(kind=float | None, new=None)] = math.inf
    """Ends a trial whose metric rises above this."""
    warmup: Annotated[int, Key(kind=Length | None, new=None)] = 0
    """Not before this length."""


@dataclass(frozen=True, kw_only=True)
class Median:
    warmup: Annotated[int, Key(kind=Length | None, new=None)] = 0
    """Not before this length."""
    min_trials: Annotated[int, Key(ge=1)] = 5
    """Not before so many other trials have come as far."""
    interval: Annotated[int, Key(kind=Length | None, new=None)] = 1
    """Lengths within such an interval are compared; equal ones only if absent."""


@dataclass(frozen=True)
class Percentile(Median):
    keep: Annotated[float, Key(required=True, gt=0, lt=100)] = 50.0
    """The best so many percent of the trials that have come as far go on."""


@dataclass(frozen=True)
class Plateau:
    reports: Annotated[int, Key(ge=2)]
    """Ends a trial whose last so many validations are all but equal."""
    std: Annotated[float, Key(gt=0)]
    """All but equal: their standard deviation is below this."""


@dataclass(frozen=True)
class Wilcoxon:
    p: Annotated[float, Key(gt=0, lt=1)] = 0.1
    """Ends a trial that is worse than the best one with this probability of error; each
    validation is one fold or data set, the same at equal lengths of all trials."""
    min_pairs: Annotated[int, Key(ge=2)] = 5
    """Not before so many validations."""


@dataclass(frozen=True)
class Cost:
    slot_hours: Annotated[float, Key(gt=0)]
    """Ends a trial that has trained so long, its slots added up."""


@dataclass(frozen=True)
class Time:
    hours: Annotated[float, Key(gt=0)]
    """Ends a trial that has trained so long, without waits in the queue."""


@dataclass(frozen=True)
class NaN:
    reports: Annotated[int, Key(ge=1)] = 1
    """Ends a trial whose metric is no finite number in so many validations in a row."""


@dataclass(frozen=True)
class Divergence:
    factor: Annotated[float, Key(gt=0)] = 3.0
    """Ends a trial that is worse than its best by so many times what it had gained."""
    reports: Annotated[int, Key(ge=1)] = 1
    """In so many validations in a row."""


@dataclass(frozen=True)
class Target:
    value: float
    """Ends the search when the metric of a trial is as good as this."""


@dataclass(frozen=True)
class NoImprovement:
    trials: Annotated[int, Key(ge=1)]
    """Ends the search when so many trials in a row were no better than those before."""
    min_delta: Annotated[float, Key(ge=0)] = 0.0
    """Better means: by more than this."""


@dataclass(frozen=True)
class TotalLength:
    length: Annotated[int, Key(kind=Length)]
    """Ends the search when all trials together have trained so long."""


@dataclass(frozen=True)
class Stopping:
    """``searcher.stopping`` as people write it; in a resolved config only those that are given."""

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
