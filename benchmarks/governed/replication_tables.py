"""Tables of replications: published figures beside ours, and what is shown and what is not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from governed import (
    character_canaries,
    removable_lanes,
    replication_criteria,
    split_autoencoder,
    two_ranks,
    weight_entropies,
)
from governed.replication_criteria import Criterion, Figures

BySetting = Mapping[str, Sequence[Mapping[str, Any]]]
"""The figures of each seed, by setting."""
ByPart = Mapping[str, BySetting]


@dataclass(frozen=True)
class Part:
    """One replication.

    Attributes:
        columns: figures that are shown; the first ones are in the published rows, in their order.
        unit: of all figures but ``AUC``.
        peer: whose the published rows are.
        rows: by setting its name and the published row; None where nobody has published it.
    """

    title: str
    columns: Sequence[str]
    unit: str
    peer: str
    rows: Mapping[str, tuple[str, Sequence[float | None]]]
    criteria: Sequence[Criterion]


_AUTHORS = "an earlier program, of other authors, one seed"
PARTS = {
    "autoencoders": Part(
        "Split autoencoders: errors of the certificate and the decoder. Published: of MNIST, in "
        "units that are not ours; compare ratios and order",
        (
            "certificate 0-4",
            "certificate 5-9",
            "decoder 0-4",
            "decoder 5-9",
            "certificate 0-4 squared",
            "certificate 5-9 squared",
        ),
        "MAE",
        "Cloud et al. 2024, table 2 (MNIST)",
        {key: (one.name, one.paper) for key, one in split_autoencoder.SETTINGS.items()},
        replication_criteria.AUTOENCODERS,
    ),
    "canaries": Part(
        "Canaries in a text: exposure in bits (1.44 where nothing is known), AUC against others "
        "(0.5 +- 0.13 per seed), and the loss on other text",
        ("exposure", "exposure of others", "auc", "loss"),
        "bits",
        _AUTHORS,
        {key: (one.name, one.reference) for key, one in character_canaries.SETTINGS.items()},
        replication_criteria.CANARIES,
    ),
    "lanes": Part(
        "Data that can be removed: losses in nats per character of A and of B without lanes, and "
        "of B with them",
        ("retain", "forget", "forget before"),
        "nats",
        _AUTHORS,
        {key: (one.name, one.reference) for key, one in removable_lanes.SETTINGS.items()},
        replication_criteria.LANES,
    ),
    "entropies": Part(
        "Entropies of weights, and the share of labels that the network gives rightly",
        ("layer 0", "layer 1", "layer 2", "test accuracy", "fitted"),
        "entropy",
        _AUTHORS,
        {key: (one.name, one.reference) for key, one in weight_entropies.SETTINGS.items()},
        replication_criteria.ENTROPIES,
    ),
    "ranks": Part(
        f"Split autoencoders on {two_ranks.WORLD} gloo ranks and on one, largest difference",
        tuple(split_autoencoder.SETTINGS),
        "difference",
        "one process",
        {"all": (f"{two_ranks.STEPS} steps", ())},
        replication_criteria.RANKS,
    ),
}


def lines(by_part: ByPart) -> Iterator[str]:
    """All lines to print of the parts of which something has been trained."""
    for name, part in PARTS.items():
        if name in by_part:
            yield part.title
            yield from _table(part, by_part[name])
            if name == "autoencoders":
                always = split_autoencoder.floor()
                values = (f"{always[one]:.3f}" for one in part.columns if one in always)
                yield f"   the same picture for all: {', '.join(values)}"
            of = Figures(_complete(by_part[name]))
            yield from (_verdict(one, of) for one in part.criteria)
            yield ""


def _table(part: Part, figures: BySetting) -> Iterator[str]:
    """A row for each setting: published, ours, and the spread of ours over seeds."""
    width = max(len(name) for name, _ in part.rows.values()) + 4
    yield " " * width + "".join(f"{one:>25}" for one in part.columns)
    for key, (name, published) in part.rows.items():
        line = f"{key:>3} {name:<{width - 4}}"
        for place, column in enumerate(part.columns):
            theirs = published[place] if place < len(published) else None
            said = "" if theirs is None else f"{theirs:.2f}"
            line += f"{said:>9}{_ours(figures.get(key, ()), column):>16}"
        yield line


def _ours(seeds: Sequence[Mapping[str, Any]], column: str) -> str:
    values = [one[column] for one in seeds if one[column] is not None]
    if not values:
        return "-" if seeds else "missing"
    digits = ".1e" if max(values) < 1e-3 else ".3f"
    spread = "" if len(values) == 1 else f" ({max(values) - min(values):{digits}})"
    return f"{np.mean(values):{digits}}{spread}"


def _complete(figures: BySetting) -> BySetting:
    """Those of settings of which no seed is missing that another one has."""
    most = max(map(len, figures.values()))
    return {key: seeds for key, seeds in figures.items() if len(seeds) == most}


def _verdict(criterion: Criterion, of: Figures) -> str:
    try:
        value, met = criterion.value(of), criterion.met(of)
    except KeyError:
        return f"  {'not trained':<11} {criterion.what}"
    inside = [criterion.met(one) for one in of.seeds()]
    said = "shown" if met else "NOT SHOWN"
    mark = ", required" if criterion.required else ""
    return (
        f"  {said:<11} {criterion.what}: {value:.3g} {criterion.unit} ({criterion.bound}, in "
        f"{sum(inside)} of {len(inside)} seeds{mark})"
    )


def shown(by_part: ByPart) -> bool:
    """Whether all that is required is shown; all settings have been trained."""
    return all(
        one.met(Figures(figures))
        for name, figures in by_part.items()
        for one in PARTS[name].criteria
        if one.required
    )


def rows(by_part: ByPart) -> list[dict[str, Any]]:
    """Rows of the results: each figure beside the published one, then each criterion."""
    found = []
    for name, part in PARTS.items():
        of = Figures(by_part[name])
        for key, (setting, published) in part.rows.items():
            for place, column in enumerate(part.columns):
                seeds = [one[column] for one in by_part[name][key]]
                if None in seeds:
                    continue
                theirs = published[place] if place < len(published) else None
                ours = float(np.mean(seeds))
                found.append(
                    {
                        "what": f"{name} {key} ({setting}): {column}",
                        "unit": _unit(part, column),
                        "ours": ours,
                        "peer": theirs,
                        "peer_name": None if theirs is None else part.peer,
                        "ratio": None if theirs is None else round(ours / theirs, 3),
                        "goal": None,
                        "met": None,
                        "runs": len(seeds),
                        "seeds": seeds,
                    }
                )
        found += [
            {
                "what": f"{name}: {one.what}",
                "unit": one.unit,
                "ours": one.value(of),
                "peer": None,
                "peer_name": None,
                "ratio": None,
                "goal": one.bound,
                "met": one.met(of),
                "runs": len(list(of.seeds())),
                "required": one.required,
                "seeds": [one.value(seed) for seed in of.seeds()],
            }
            for one in part.criteria
        ]
    return found


def _unit(part: Part, column: str) -> str:
    if column.endswith("squared"):
        return "MSE"
    units = {"auc": "AUC", "loss": "nats", "test accuracy": "share", "fitted": "share"}
    return units.get(column, part.unit)
