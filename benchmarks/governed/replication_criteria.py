"""What replications are to show: figures of trained settings, each within its bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from governed import split_autoencoder
from hpcdet.policy import measures

LOW, HIGH = "certificate 0-4", "certificate 5-9"
EXPOSURE, AUC = "exposure", "auc"
RETAIN, FORGET, BEFORE = "retain", "forget", "forget before"


class Figures:
    """The figures of the settings of one part.

    Args:
        by_setting: those of each seed, or of some.
    """

    def __init__(self, by_setting: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        self._by_setting = by_setting

    def __call__(self, setting: str, name: str) -> float:
        """The mean over seeds.

        Raises:
            KeyError: the setting has not been trained.
        """
        return float(np.mean([one[name] for one in self._of(setting)]))

    def p(self, setting: str) -> float:
        """P(exposures add up to as much) if no canary of any seed was learned."""
        return measures.canary_p(np.concatenate([one["exposures"] for one in self._of(setting)]))

    def seeds(self) -> Iterator[Figures]:
        """Those of each seed alone, in the order of seeds."""
        for place in range(max(map(len, self._by_setting.values()), default=0)):
            yield Figures({key: of[place : place + 1] for key, of in self._by_setting.items()})

    def _of(self, setting: str) -> Sequence[Mapping[str, Any]]:
        found = self._by_setting.get(setting, ())
        if not found:
            raise KeyError(setting)
        return found


@dataclass(frozen=True)
class Criterion:
    """A figure that is to be within bounds.

    Attributes:
        value: the figure, of the means over seeds, or of one seed.
        required: without it the replication has failed; others are claims that may not repeat.
    """

    what: str
    unit: str
    value: Callable[[Figures], float]
    least: float = -math.inf
    most: float = math.inf
    required: bool = False

    def met(self, figures: Figures) -> bool:
        """Whether it is shown."""
        return self.least <= self.value(figures) <= self.most

    @property
    def bound(self) -> str:
        """As people write it."""
        return f">= {self.least:g}" if self.least > -math.inf else f"<= {self.most:g}"


def _ratio(setting: str) -> Callable[[Figures], float]:
    return lambda of: of(setting, LOW) / of(setting, HIGH)


def _apart(setting: str) -> Callable[[Figures], float]:
    return lambda of: abs(of(setting, LOW) - of(setting, HIGH))


def _either(choose: Callable[[float, float], float], setting: str) -> Callable[[Figures], float]:
    return lambda of: choose(of(setting, LOW), of(setting, HIGH))


def _half_as_split(setting: str, what: str) -> Criterion:
    """At least half of the contrast that was published, above a ratio of 1."""
    low, high = split_autoencoder.SETTINGS[setting].paper
    least = round(1 + (low / high - 1) / 2, 2)
    return Criterion(f"{setting}: {what}", "ratio", _ratio(setting), least)


AUTOENCODERS = (
    Criterion("1: the last half does not draw 0-4", "MAE", lambda of: of("1", LOW), 0.30,
              required=True),
    Criterion("1: and draws 5-9", "MAE", lambda of: of("1", HIGH), most=0.16, required=True),
    Criterion("1: error on 0-4 by that on 5-9", "ratio", _ratio("1"), 2, required=True),
    _half_as_split("1p", "penalties by half as strong split, too"),
    _half_as_split("2", "separate decoders split, too"),
    _half_as_split("3", "without the correlation penalty it still splits"),
    Criterion("4: without regularisation the last half draws nothing", "MAE", _either(min, "4"),
              0.30, required=True),
    Criterion("5: and with separate decoders it draws everything", "MAE", _either(max, "5"),
              most=0.14, required=True),
    _half_as_split("6", "a last half trained on all digits splits less"),
    _half_as_split("7", "L1 alone splits if 0-4 are not drawn"),
    Criterion("8: without L1 0-4 are drawn though never seen", "MAE", _apart("8"), most=0.03),
    Criterion("8: as well", "MAE", _either(max, "8"), most=0.15),
    Criterion("9: regularisation without routing splits nothing", "MAE", _apart("9"), most=0.03),
    Criterion("10: nor does a plain autoencoder", "MAE", _apart("10"), most=0.03, required=True),
    Criterion("10: which draws all digits", "MAE", _either(max, "10"), most=0.15, required=True),
)  # fmt: skip

RANKS = tuple(
    Criterion(f"{name}: parameters on two ranks and on one, after each of 20 steps", "difference",
              lambda of, name=name: of("all", name), most=1e-5, required=True)
    for name in split_autoencoder.SETTINGS
)  # fmt: skip


def _less(setting: str, other: str) -> Callable[[Figures], float]:
    return lambda of: of(other, EXPOSURE) - of(setting, EXPOSURE)


def _p(setting: str) -> Callable[[Figures], float]:
    return lambda of: of.p(setting)


CANARIES = (
    Criterion("1: seen once, canaries are not told from others", "p", _p("1"), 0.05),
    Criterion("3 above 2: exposure rises with repetitions", "bits", _less("2", "3"), 0.5),
    Criterion("4 above 3: and rises further", "bits", _less("3", "4"), 0.5),
    Criterion("4: seen 64 times they are known", "AUC", lambda of: of("4", AUC), 0.9,
              required=True),
    Criterion("5 below 4: less if the first blocks learn nothing", "bits", _less("5", "4"), 0),
    Criterion("6 below 4: less if the head alone learns", "bits", _less("6", "4"), 0,
              required=True),
    Criterion("7 below 4: less if early layers alone learn", "bits", _less("7", "4"), 0),
    Criterion("7 below 5: early layers know less than late ones", "bits", _less("7", "5"), 0),
    Criterion("5: known all the same", "p", _p("5"), most=1e-3, required=True),
    Criterion("6: known all the same", "p", _p("6"), most=1e-3, required=True),
    Criterion("7: known all the same", "p", _p("7"), most=1e-3, required=True),
    Criterion("8: filtered, they are not told from others", "p", _p("8"), 0.05, required=True),
)  # fmt: skip


def _above(setting: str, other: str, name: str) -> Callable[[Figures], float]:
    return lambda of: of(setting, name) - of(other, name)


LANES = (
    Criterion("3 and 2: an isolated lane keeps A as a perfect filter does", "nats",
              _above("3", "2", RETAIN), most=0.1),
    Criterion("3 and 2: and without the lane B is as little known", "nats",
              _above("3", "2", FORGET), -0.2),
    Criterion("3: with the lane B is known", "nats", lambda of: of("3", FORGET) - of("3", BEFORE),
              1),
    Criterion("2 above 6: a filter that overlooks 10 % of B has learned B", "nats",
              _above("2", "6", FORGET), 0.5),
    Criterion("7 above 6: the isolated lane has not", "nats", _above("7", "6", FORGET), 0.5),
    Criterion("7a above 6: nor has it if what is undiscovered counts as A", "nats",
              _above("7a", "6", FORGET), 0.5),
    Criterion("8 above 6: nor has SGTM", "nats", _above("8", "6", FORGET), 0.3),
    Criterion("9 above 6: nor has routing of activations", "nats", _above("9", "6", FORGET), 0.3),
    Criterion("4 above 2: SGTM costs A something", "nats", _above("4", "2", RETAIN), 0),
    Criterion("5 above 4: and less than routing of activations", "nats",
              _above("5", "4", RETAIN), 0),
)  # fmt: skip


def _moved(setting: str) -> Callable[[Figures], float]:
    """How far the entropies of the layers lie off those of setting 1, at most."""
    layers = ("layer 0", "layer 1", "layer 2")
    return lambda of: max(abs(of(setting, one) - of("1", one)) for one in layers)


ENTROPIES = (
    Criterion("2: random labels are learned by heart", "share", lambda of: of("2", "fitted"), 0.99,
              required=True),
    Criterion("2: which is no use on others", "share", lambda of: of("2", "test accuracy"),
              most=0.2, required=True),
    Criterion("3: regularised, the network is right on others", "share",
              lambda of: of("3", "test accuracy"), 0.9, required=True),
    Criterion("3 by 2: and its entropies have moved more", "ratio",
              lambda of: _moved("3")(of) / _moved("2")(of), 1, required=True),
)  # fmt: skip
