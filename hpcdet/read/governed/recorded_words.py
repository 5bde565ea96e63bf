"""Records of governance in checkpoints besides counts, in words for the terminal and the report.

Each function takes what another version, or a stranger, may have written: what has another form is
shown as JSON, or left out of a table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hpcdet import units
from hpcdet.read.governed.governed_trials import GovernanceView
from hpcdet.read.governed.trained_policies import TrialPolicyChangeView

_LONGEST = 200
"""Characters of what has no words; ``-o json`` has all of it."""
_TABULATED = ("entropy", "spectral")

Row = list[float | None]
"""A value of each layer; None where there is none."""


def entropies(view: GovernanceView) -> dict[str, Row]:
    """Entropies by layer in [0, 1]: of sources, as planned and within what, and of weights."""
    of_sources, of_weights = (_mapping(view.recorded.get(name)) for name in _TABULATED)
    planned = _mapping(of_sources.get("expected"))
    rows: dict[str, Any] = {
        "of sources": view.entropy,
        "of sources, planned": planned.get("value"),
        "of sources, within": planned.get("tolerance"),
        "of weights": [_mapping(of_weights.get("layers")).get(one) for one in view.layers],
    }
    return {
        name: [one if isinstance(one, float) else None for one in values]
        for name, values in rows.items()
        if isinstance(values, list) and len(values) == len(view.layers)
    }


def outside(view: GovernanceView) -> list[str]:
    """Layers whose weights' entropy lies out of the band that the policy expects."""
    found = _mapping(view.recorded.get("spectral")).get("outside")
    return [str(one) for one in found] if isinstance(found, list) else []


def recorded(view: GovernanceView) -> Iterator[tuple[str, str]]:
    """Yield each thing that the checkpoint records besides, by its name, and what it is."""
    for name, value in sorted(view.recorded.items()):
        if name in _TABULATED or value is None:
            continue
        try:
            title, words = _WORDS[name]
            yield title, words(value)
        except (AttributeError, KeyError, TypeError, ValueError):
            text = json.dumps(value, sort_keys=True)
            yield name, text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"


def change(one: TrialPolicyChangeView) -> str:
    """Describe a change of a policy: from which attempt on, why, by whom, and when."""
    of = one.source or one.code
    since = f"from attempt {one.attempt} on" if one.attempt else "of no attempt yet"
    what = f"{one.act} of {of}" if of else one.act
    return f"{what} ({one.kind}), {since}: {one.reason} ({one.by}, {one.time[:19]})"


def short(digest: str) -> str:
    """The beginning of a digest, which tells it from others by eye."""
    return f"{digest.removeprefix('sha256:')[:12]}…"


def _mapping(given: Any) -> Mapping[str, Any]:
    return given if isinstance(given, Mapping) else {}


def _kept(value: Any, chosen: str) -> str:
    """Tests of memorization as a checkpoint keeps them."""
    void = f", VOID: {value['void']}" if value["void"] else ""
    return f"{value['looks']} looks, digest {short(value[chosen])} of what is {chosen}{void}"


_WORDS: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "canaries": ("canaries", lambda value: _kept(value, "planted")),
    "conformance": ("conformance", lambda value: f"{value:.6g} at the last probe"),
    "generators": (
        "random numbers",
        lambda value: f"digests of {units.counted(len(value), 'rank')}",
    ),
    "ledger": (
        "ledger",
        lambda value: (
            f"attempt {value['attempt']}, record {value['seq']}, hash {short(value['hash'])}"
        ),
    ),
    "optimizer": ("optimizers", lambda value: f"digest {short(value)} of their state"),
    "options": (
        "options of optimizers",
        lambda value: f"digests of {', '.join(sorted({key for one in value for key in one}))}",
    ),
    "root": ("state of governance", lambda value: f"digest {short(value)}"),
    "seal": (
        "signatures of the checkpoint",
        lambda value: f"{len(value['signatures'])} (hpcdet ledger verify)",
    ),
    "site": (
        "statements of nodes",
        lambda value: ", ".join(
            f"{one['node']} {one['level']} {short(one['digest']) if one['digest'] else ''}".strip()
            for one in value
        ),
    ),
    "software": ("code that routes", lambda value: f"digest {short(value['router'])}"),
    "twins": ("twins", lambda value: _kept(value, "withheld")),
}
"""By name: what people call it, and its words, which raise for other forms."""
