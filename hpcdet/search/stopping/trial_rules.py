"""When a trial has gone on for long enough: rules that any searcher can have.

A policy sees each report and says nothing, or why training ends. Its state is plain JSON that
it changes in place. Values are *losses*: the metric, negated where larger is better; a metric
that is missing, no number or not finite is ``WORST``.
"""

from __future__ import annotations

import math
import statistics
import sys
from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from hpcdet.goals import finite
from hpcdet.search.api.codec import StateRecord
from hpcdet.search.api.events import S
from hpcdet.store.config.sections import stopping_keys

WORST = sys.float_info.max
Scope = Literal["trial", "search"]
ByTrial = dict[str, Any]
"""A state of what is known of each trial, by its number as text."""


@dataclass(frozen=True)
class RuleReport:
    """A report as policies see it.

    Attributes:
        trial: its number, as text (a key of JSON).
        length: training so far, in the unit of the search.
        loss: the metric, smaller is better; ``WORST`` if it is no finite number.
        metric: the metric as reported.
        slot_seconds: training of this trial so far, summed over its slots.
        slots: of the trial.
        feasible: it keeps all constraints.
    """

    trial: str
    length: int
    loss: float
    metric: Any
    slot_seconds: float = 0.0
    slots: int = 1
    feasible: bool = True


class TrialRule(Protocol[S]):
    """A stopping rule; ``scope`` is what ends: the trial that reported, or the search."""

    @property
    def scope(self) -> Scope: ...

    def initial(self) -> S:
        """State before the first report: plain JSON, or a ``StateRecord``."""

    def judge(self, state: S, seen: RuleReport) -> str:
        """Why training ends with this report, or ""."""


class Blank:
    """A policy that remembers nothing before the first report."""

    def initial(self) -> ByTrial:
        return {}


def loss(metric: Any, smaller_is_better: bool) -> float:
    """A metric as a loss; ``WORST`` if it is missing, a string, NaN or infinite."""
    value = finite(metric)
    if value is None:
        return WORST
    return value if smaller_is_better else -value


@dataclass(frozen=True)
class PatienceRule(stopping_keys.Patience, Blank):
    """Ends a trial whose best value is no better than ``reports`` reports before.

    Attributes:
        min_delta: a value counts as better if it is so by more than this.
    """

    scope: Scope = "trial"

    def judge(self, state: ByTrial, seen: RuleReport) -> str:
        best, since = state.get(seen.trial, (WORST, 0))
        if seen.loss < best - self.min_delta:
            state[seen.trial] = [seen.loss, 0]
            return ""
        state[seen.trial] = [best, since + 1]
        if since + 1 < self.reports:
            return ""
        return f"no better in {since + 1} reports"


@dataclass(frozen=True)
class ThresholdRule(stopping_keys.Threshold, Blank):
    """Ends a trial whose metric is below ``lower`` or above ``upper`` after ``warmup``.

    Attributes:
        finite: a metric that is no finite number violates any bound, too. A report without the
            metric does not: it is about something else.
    """

    finite: bool = True
    scope: Scope = "trial"

    def judge(self, state: ByTrial, seen: RuleReport) -> str:
        if seen.length < self.warmup or seen.metric is None:
            return ""
        if seen.loss == WORST:
            return f"the metric is {seen.metric!r}" if self.finite else ""
        if seen.metric < self.lower:
            return f"{seen.metric:g} is below {self.lower:g}"
        if seen.metric > self.upper:
            return f"{seen.metric:g} is above {self.upper:g}"
        return ""


@dataclass
class PercentileState(StateRecord):
    """The best loss and last length of each trial, and sorted losses at each length."""

    best: dict[str, float] = field(default_factory=dict)
    at: dict[str, list[float]] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class PercentileRule(stopping_keys.Percentile):
    """Ends a trial whose best value is not among the best ``keep`` percent at the same length.

    The values compared are those that each trial had reached as its best by that length, of all
    trials that have reported there, this one included, whether they have ended or not. With
    ``keep`` 50 a trial ends when its best is worse than their median. The median stopping rule of
    Golovin et al., "Google Vizier: A Service for Black-Box Optimization" (KDD 2017), compares a
    trial's best value, too, but with the median of the running averages of completed trials.

    Attributes:
        warmup: shorter lengths are not judged.
        min_trials: as many others must have reported at this length before anything is judged.
        interval: lengths are rounded down to multiples of this before they are compared.
    """

    scope: Scope = "trial"

    def initial(self) -> PercentileState:
        return PercentileState()

    def judge(self, state: PercentileState, seen: RuleReport) -> str:
        best = min(state.best.get(seen.trial, WORST), seen.loss)
        state.best[seen.trial] = best
        at = seen.length // self.interval
        if at <= state.last.get(seen.trial, -1):
            return ""
        state.last[seen.trial] = at
        others = state.at.setdefault(str(at), [])
        rank, n = bisect_left(others, best), len(others)
        insort(others, best)
        if seen.length < self.warmup or n < self.min_trials:
            return ""
        if rank < max(math.ceil((n + 1) * self.keep / 100), 1):
            return ""
        return f"rank {rank + 1} of {n + 1} at {seen.length}: best {self.keep:g} % go on"


@dataclass(frozen=True)
class PlateauRule(stopping_keys.Plateau, Blank):
    """Ends a trial when its last ``reports`` values have a standard deviation below ``std``."""

    scope: Scope = "trial"

    def judge(self, state: ByTrial, seen: RuleReport) -> str:
        last = [*state.get(seen.trial, ()), seen.loss][-self.reports :]
        state[seen.trial] = last
        if len(last) < self.reports or WORST in last:
            return ""
        spread = statistics.pstdev(last)
        flat = spread < self.std
        return f"flat: deviation {spread:.3g} over {self.reports} reports" if flat else ""


@dataclass
class WilcoxonState(StateRecord):
    """The losses of each trial by length, and the trial that is best."""

    series: dict[str, dict[str, float]] = field(default_factory=dict)
    best: str | None = None


@dataclass(frozen=True)
class WilcoxonRule(stopping_keys.Wilcoxon):
    """Ends a trial that is worse than the best one in a signed-rank test of paired values.

    Each report is one instance of the same series for every trial, a fold or a data set: values
    at equal lengths are pairs. The best trial is the one with the best mean over the longest
    series. One-sided; Wilcoxon, Individual comparisons by ranking methods (Biometrics 1945).

    Attributes:
        p: a trial ends when the probability of such pairs under equality is below it.
        min_pairs: fewer are not tested.
    """

    scope: Scope = "trial"

    def initial(self) -> WilcoxonState:
        return WilcoxonState()

    def judge(self, state: WilcoxonState, seen: RuleReport) -> str:
        series = state.series.setdefault(seen.trial, {})
        series[str(seen.length)] = seen.loss
        why = ""
        champion = state.best
        if champion not in (None, seen.trial):
            why = self._compare(series, state.series[champion])
        key = self._standing(series)
        if champion is None or key < self._standing(state.series[champion]):
            state.best = seen.trial
        return why

    @staticmethod
    def _standing(series: Mapping[str, float]) -> tuple[int, float]:
        values = series.values()
        mean = WORST if WORST in values else statistics.fmean(values)
        return -len(series), mean

    def _compare(self, ours: Mapping[str, float], best: Mapping[str, float]) -> str:
        from scipy.stats import wilcoxon

        both = [at for at in ours if at in best and WORST not in (ours[at], best[at])]
        differences = [ours[at] - best[at] for at in both]
        if len(both) < self.min_pairs or sum(differences) <= 0:
            return ""
        p = float(wilcoxon(differences, alternative="greater", zero_method="zsplit").pvalue)
        return f"worse than the best in {len(both)} pairs (p = {p:.2g})" if p < self.p else ""


@dataclass(frozen=True)
class CostRule(stopping_keys.Cost, Blank):
    """Ends a trial that has trained for more than so many slot-hours."""

    scope: Scope = "trial"

    def judge(self, state: ByTrial, seen: RuleReport) -> str:
        spent = seen.slot_seconds / 3600
        return f"{spent:.3g} slot-hours of {self.slot_hours:g}" if spent > self.slot_hours else ""


@dataclass(frozen=True)
class TimeRule(stopping_keys.Time, Blank):
    """Ends a trial that has trained for more than so many hours, without waits in the queue."""

    scope: Scope = "trial"

    def judge(self, state: ByTrial, seen: RuleReport) -> str:
        spent = seen.slot_seconds / seen.slots / 3600
        return f"trained {spent:.3g} hours of {self.hours:g}" if spent > self.hours else ""


@dataclass(frozen=True)
class NaNRule(stopping_keys.NaN, Blank):
    """Ends a trial whose metric was no finite number in so many reports in a row.

    Attributes:
        absent: reports without the metric count, too; else they are passed over.
    """

    absent: bool = False
    scope: Scope = "trial"

    def judge(self, state: ByTrial, seen: RuleReport) -> str:
        if seen.metric is None and not self.absent:
            return ""
        if seen.loss != WORST:
            state.pop(seen.trial, None)
            return ""
        state[seen.trial] = state.get(seen.trial, 0) + 1
        if state[seen.trial] < self.reports:
            return ""
        return f"the metric is {seen.metric!r}"


@dataclass(frozen=True)
class DivergenceRule(stopping_keys.Divergence, Blank):
    """Ends a trial whose value is far worse than its own best in so many reports in a row.

    Far: the distance to the best is more than ``factor`` times the greater of the best's
    magnitude and what the trial has gained since its first report.

    Attributes:
        finite: a metric that is no finite number is far, too, also before there is a best.
            Reports without the metric are passed over.
    """

    finite: bool = True
    scope: Scope = "trial"

    def judge(self, state: ByTrial, seen: RuleReport) -> str:
        if seen.metric is None:
            return ""
        first, best, bad = state.get(seen.trial, (seen.loss, seen.loss, 0))
        if seen.loss == WORST:
            if not self.finite:
                return ""
            state[seen.trial] = [first, best, bad + 1]
            return f"diverged: the metric is {seen.metric!r}" if bad + 1 >= self.reports else ""
        if first == WORST:
            first = best = seen.loss
        best = min(best, seen.loss)
        far = seen.loss - best > self.factor * max(abs(best), first - best)
        state[seen.trial] = [first, best, bad + 1 if far else 0]
        if bad + far < self.reports or not far:
            return ""
        return f"diverged: {seen.loss - best:.3g} worse than its best"
