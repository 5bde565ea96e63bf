"""Model cards: Markdown with Hugging Face's metadata block, from a version's record alone.

What is not recorded is not in the card; nothing is guessed. Labels of the form ``license=mit``,
``language=en``, ``pipeline_tag=…`` and ``dataset=…`` go into the block's keys, others are tags.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from hpcdet import units
from hpcdet.read.lookup.escapes import escaped
from hpcdet.read.views import items
from hpcdet.registry.registered_models import Version
from hpcdet.registry.version_views import VersionView, view

_LISTS = {"language": "language", "dataset": "datasets"}
_SINGLE = ("license", "pipeline_tag")
_TAG = "hpcdet"


def card(version: Version) -> str:
    """Return the card of a version."""
    row = view(version)
    block = yaml.safe_dump(
        _metadata(row), sort_keys=False, allow_unicode=True, default_flow_style=False
    )
    return f"---\n{block}---\n\n" + "\n".join(_body(version, row)) + "\n"


def _metadata(row: VersionView) -> dict[str, Any]:
    """Return the metadata block: keys of Hugging Face's that the record has a value of."""
    found: dict[str, Any] = {"library_name": "pytorch"}
    tags = [_TAG]
    for label in row.labels:
        key, sign, value = label.partition("=")
        if sign and value and key in _SINGLE:
            found[key] = value
        elif sign and value and key in _LISTS:
            found.setdefault(_LISTS[key], []).append(value)
        else:
            tags.append(label)
    for source in row.governance.get("sources", ()):
        found.setdefault("datasets", []).append(source)
    found["tags"] = list(dict.fromkeys(tags))
    if row.metrics:
        found["metrics"] = sorted(row.metrics)
    return found


def _body(version: Version, row: VersionView) -> Iterator[str]:
    record = version.record
    named = f" ({row.semantic})" if row.semantic else ""
    yield f"# {row.model}, version {row.version}{named}"
    if record.description:
        yield from ("", _text(record.description))
    if row.aliases:
        yield from ("", f"Aliases: {', '.join(row.aliases)}.")
    yield from ("", "## Results", "")
    if row.metrics:
        how = "smaller" if record.smaller_is_better else "larger"
        yield from _table(("metric", "value"), _pairs(row.metrics))
        yield ""
        yield f"Last validation at or before step {row.step}. The search compared trials by"
        yield f"`{_text(record.metric)}` ({how} is better)."
    else:
        yield "No validation was reported before this checkpoint."
    yield from ("", "## Training", "")
    capsule = row.capsule
    facts = {
        "experiment": f"{row.experiment}, trial {row.trial}",
        "step": row.step,
        "seed": record.seed,
        "began from": record.parent,
        "commit": capsule.get("commit", "") + (" (with changes)" if capsule.get("dirty") else ""),
        "hpcdet": capsule.get("hpcdet", ""),
        "Python": capsule.get("python", ""),
        "platform": capsule.get("platform", ""),
        "trained by": capsule.get("user", ""),
        "added by": f"{row.by}, {row.created}",
    }
    yield from _table(("", ""), [(name, one) for name, one in facts.items() if one != ""])
    if row.hyperparameters:
        yield from ("", "### Hyperparameters", "")
        yield from _table(("name", "value"), _pairs(row.hyperparameters))
    yield from ("", "## Files", "")
    known = {
        "size": units.size(row.bytes),
        "content digest (BLAKE3)": f"`{row.digest}`",
        "manifest root (BLAKE3)": f"`{record.root}`",
        "config (BLAKE3)": f"`{capsule.get('config', '')}`",
        "code (BLAKE3)": f"`{capsule.get('code', '')}`",
    }
    yield from _table(("", ""), list(known.items()))
    if row.governance:
        yield from _governance(row.governance)
    if row.notes:
        yield from ("", "## Notes")
    for note in row.notes:
        yield from ("", f"{_text(note.text)} ({note.by}, {note.at})")


def _governance(said: Mapping[str, Any]) -> Iterator[str]:
    yield from ("", "## Governance", "")
    yield f"Policy `{_text(said.get('policy_digest', ''))}`, exposure (rows times weight):"
    yield ""
    layers = [str(one) for one in said.get("layers", ())]
    rows = zip(said.get("sources", ()), said.get("exposure", ()), strict=False)
    yield from _table(("source", *layers), [(source, *row) for source, row in rows])
    if said.get("doubt"):
        yield from ("", f"NOT VERIFIED: {_text(said['doubt'])}")


def _pairs(tree: Mapping[str, Any], above: str = "") -> list[tuple[str, Any]]:
    """Return names with dots and values of a tree."""
    found: list[tuple[str, Any]] = []
    for name, one in tree.items():
        nested = isinstance(one, Mapping) and one
        found += _pairs(one, f"{above}{name}.") if nested else [(f"{above}{name}", one)]
    return found


def _table(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    yield f"| {' | '.join(map(_cell, titles))} |"
    yield "|" + "---|" * len(titles)
    for row in rows:
        yield f"| {' | '.join(map(_cell, row))} |"


def _cell(value: Any) -> str:
    text = "" if value == "" else str(value) if isinstance(value, float) else items.text(value)
    return _text(text).replace("|", "\\|")


def _text(value: Any) -> str:
    """Return text as one line of Markdown in which nothing is markup of HTML."""
    plain = " ".join(str(value).split())
    return escaped(plain).replace("&", "&amp;").replace("<", "&lt;")
