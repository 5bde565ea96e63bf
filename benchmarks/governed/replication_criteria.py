"""Tables of replications: published figures beside ours, and whether each criterion is shown."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from governed import character_canaries, removable_lanes, split_autoencoder, two_ranks

Figures = Mapping[tuple[str, str], Sequence[Mapping[str, float]]]
"""By part and setting the figures of each seed."""
Of = Callable[[str, str], float]
"""The mean over seeds of a figure of a setting."""


def tables(figures: Figures) -> Iterator[str]:
    """All lines to print."""
    yield from _autoencoders(figures)
    yield from _canaries(figures)
    yield from _lanes(figures)
    yield from _ranks(figures)


def _table(part: str, figures: Figures, columns: Mapping[str, int], settings: Any) -> Iterator[str]:
    """Lines of one table.

    Args:
        columns: names of figures, and the place of each in the published row; -1: in none.
    """
    width = max(len(one.name) for one in settings.values()) + 4
    yield " " * width + "".join(f"{name:>27}" for name in columns)
    yield " " * width + f"{'published   ours (spread)':>27}" * len(columns)
    for number, setting in settings.items():
        found = figures.get((part, number), ())
        line = f"{number:>2} {setting.name:<{width - 3}}"
        published = getattr(setting, "paper", None) or setting.reference
        for name, place in columns.items():
            theirs = published[place] if place >= 0 else None
            said = "-" if theirs is None else f"{theirs:.2f}"
            line += f"{said:>11}{_ours(found, name):>16}"
        yield line


def _ours(found: Sequence[Mapping[str, float]], name: str) -> str:
    values = [one[name] for one in found]
    if not values:
        return "missing"
    return f"{statistics.fmean(values):.3f} ({max(values) - min(values):.3f})"


def _criteria(part: str, figures: Figures, wanted: Mapping[str, Callable[[Of], bool]]) -> Any:
    def of(setting: str, name: str) -> float:
        return statistics.fmean(one[name] for one in figures[part, setting])

    for what, test in wanted.items():
        try:
            said = "shown" if test(of) else "NOT SHOWN"
        except KeyError:
            said = "not trained yet"
        yield f"  {said:<16}{what}"
    yield ""


# -- split autoencoders ----------------------------------------------------------------------

LOW, HIGH = "certificate 0-4", "certificate 5-9"


def _split(setting: str, ratio: float) -> Callable[[Of], bool]:
    return lambda of: of(setting, LOW) >= ratio * of(setting, HIGH)


def _alike(setting: str, apart: float, least: float = 0.0, most: float = 1.0) -> Any:
    def test(of: Of) -> bool:
        both = (of(setting, LOW), of(setting, HIGH))
        return abs(both[0] - both[1]) <= apart and min(both) >= least and max(both) <= most

    return test


AUTOENCODERS: Mapping[str, Callable[[Of], bool]] = {
    "1: certificate at least 0.30 on 0-4, at most 0.16 on 5-9, ratio at least 2": lambda of: (
        of("1", LOW) >= 0.30 and of("1", HIGH) <= 0.16 and of("1", LOW) >= 2 * of("1", HIGH)
    ),
    "2: separate decoders split as well: ratio at least 2": _split("2", 2),
    "3: without the correlation penalty it still splits: ratio at least 2": _split("3", 2),
    "4: without regularisation the last half is of no use: both at least 0.30": _alike(
        "4", 1.0, least=0.30
    ),
    "5: nor do separate decoders split without it: both at most 0.14": _alike("5", 1.0, most=0.14),
    "6: a last half trained on all digits splits less: ratio at least 1.4": _split("6", 1.4),
    "7: L1 alone, without 0-4: ratio at least 1.7": _split("7", 1.7),
    "8: without regularisation 0-4 are drawn though never seen: apart at most 0.03": _alike(
        "8", 0.03, most=0.15
    ),
    "9: regularisation without routing splits nothing: apart at most 0.03": _alike("9", 0.03),
    "10: a plain autoencoder: apart at most 0.03, both at most 0.15": _alike("10", 0.03, most=0.15),
}


def _autoencoders(figures: Figures) -> Iterator[str]:
    yield "Split autoencoders (published: MNIST, its units are not ours; compare ratios and order)"
    columns = {LOW: 0, HIGH: 1, "decoder 0-4": -1, "decoder 5-9": -1}
    yield from _table("4.1", figures, columns, split_autoencoder.SETTINGS)
    yield from _criteria("4.1", figures, AUTOENCODERS)


# -- canaries --------------------------------------------------------------------------------

KNOWN, AUC = "exposure", "auc"
CANARIES: Mapping[str, Callable[[Of], bool]] = {
    "1: one repetition leaves no trace: exposure within 1.44 +- 1": lambda of: (
        abs(of("1", KNOWN) - 1.44) <= 1
    ),
    "2-4: exposure rises with repetitions": lambda of: (
        of("2", KNOWN) < of("3", KNOWN) < of("4", KNOWN)
    ),
    "4: 64 repetitions are known: AUC at least 0.9": lambda of: of("4", AUC) >= 0.9,
    "6: restricted to the head they are known less": lambda of: of("6", KNOWN) < of("4", KNOWN),
    "6: and are known all the same: exposure at least 2.4, AUC at least 0.8": lambda of: (
        of("6", KNOWN) >= 2.4 and of("6", AUC) >= 0.8
    ),
    "7: early layers alone know less than late ones": lambda of: of("7", KNOWN) < of("5", KNOWN),
    "8: filtered, nothing: exposure within 1.44 +- 1": lambda of: abs(of("8", KNOWN) - 1.44) <= 1,
}


def _canaries(figures: Figures) -> Iterator[str]:
    yield "Canaries in a text (beside: the reference run's first seed; nobody has published these)"
    columns = {KNOWN: 0, "exposure of others": 1, AUC: 2, "loss": 3}
    yield from _table("4.2", figures, columns, character_canaries.SETTINGS)
    yield from _criteria("4.2", figures, CANARIES)


# -- lanes -----------------------------------------------------------------------------------

RETAIN, FORGET = "retain", "forget"
LANES: Mapping[str, Callable[[Of], bool]] = {
    "0 %: an isolated lane keeps A as a perfect filter does: within 0.1": lambda of: (
        abs(of("3", RETAIN) - of("2", RETAIN)) <= 0.1
    ),
    "0 %: and forgets B as that does: within 0.2": lambda of: (
        abs(of("3", FORGET) - of("2", FORGET)) <= 0.2
    ),
    "0 %: with its lane B is known: at least 1 better than without": lambda of: (
        of("3", FORGET) - of("3", "forget before") >= 1
    ),
    "10 % undiscovered: the filter fails: B 0.5 better known than by the lane": lambda of: (
        of("7", FORGET) - of("6", FORGET) >= 0.5
    ),
    "10 %: so it does beside SGTM: at least 0.3": lambda of: (
        of("8", FORGET) - of("6", FORGET) >= 0.3
    ),
    "10 %: and beside routing of activations: at least 0.3": lambda of: (
        of("9", FORGET) - of("6", FORGET) >= 0.3
    ),
    "routing costs A something: SGTM above the filter": lambda of: (
        of("4", RETAIN) > of("2", RETAIN)
    ),
    "SGTM keeps A better than routing of activations": lambda of: of("4", RETAIN) < of("5", RETAIN),
}


def _lanes(figures: Figures) -> Iterator[str]:
    yield "Removable data (beside: the reference run's first seed; published models are larger)"
    columns = {RETAIN: 0, FORGET: 1, "forget before": 2}
    yield from _table("4.3", figures, columns, removable_lanes.SETTINGS)
    yield from _criteria("4.3", figures, LANES)


def _ranks(figures: Figures) -> Iterator[str]:
    yield f"Autoencoder 3 on {two_ranks.WORLD} gloo ranks and on one, {two_ranks.STEPS} steps"
    wanted: Mapping[str, Callable[[Of], bool]] = {
        "parameters within 1e-5 after each step": lambda of: of("3", "largest difference") <= 1e-5
    }
    for one in figures.get(("ranks", "3"), ()):
        yield f"   largest difference {one['largest difference']:.1e}"
    yield from _criteria("ranks", figures, wanted)
