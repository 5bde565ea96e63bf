"""A summary of training content, as Markdown, in the order of the European Commission's template.

The template (Article 53(1)(d) of Regulation (EU) 2024/1689) asks for general information, a list
of sources, and how data were processed. What hpcdet cannot know is left for the provider to say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from hpcdet import __version__, units
from hpcdet.read.exports.governed_model import GovernedModel, SourceAccount
from hpcdet.read.governed import recorded_words
from hpcdet.read.lookup.escapes import escaped

_ASKED = "_to be said by the provider_"
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#])")

NOT_LAW = (
    "No law that asks for such a summary asks for layer-level routing: what is said of layers here "
    "is said beyond it and fulfils no duty. Nothing in this file is legal advice."
)


def to_bytes(model: GovernedModel, time: str) -> bytes:
    """Return the file.

    Args:
        time: at which it is made, ISO 8601.
    """
    return ("\n".join(_lines(model, time)) + "\n").encode()


def _lines(model: GovernedModel, time: str) -> Iterator[str]:
    yield f"# Training content of {_text(model.name or model.experiment)}"
    yield ""
    yield f"**{NOT_LAW}**"
    yield ""
    yield (
        f"Made by hpcdet {__version__} on {time[:10]} from the files of experiment "
        f"{_text(model.experiment)}: its policy, and what checkpoint {_text(model.folder.name)} of "
        f"trial {model.account.trial} records. It is an account of {model.account.records}."
    )
    yield from _general(model)
    yield from _sources(model)
    yield from _processing(model)


def _general(model: GovernedModel) -> Iterator[str]:
    policy = model.policy
    yield from ("", "## 1. General information", "")
    yield from _table(
        ("", ""),
        [
            ("Provider", _ASKED),
            ("Model", _text(model.called)),
            ("Digest of its manifest", f"`{model.root}`"),
            ("Policy", f"{_text(policy.name)}, version {policy.version}, `{policy.digest}`"),
            ("Assurance", f"**{model.account.assurance.upper()}**"),
            ("Statement of nodes", f"**{model.account.statement.upper()}**"),
            ("Period of training", _period(model)),
            ("Rows trained", f"{sum(model.account.rows.values()):,} (each time a record was seen)"),
            ("Modality, languages, size of the model", _ASKED),
        ],
    )


def _period(model: GovernedModel) -> str:
    if not model.begun:
        return "not recorded"
    begun, saved = _text(model.begun[:10]), _text(model.saved[:10])
    return f"{begun} to {saved}" if saved else f"from {begun}"


def _sources(model: GovernedModel) -> Iterator[str]:
    yield from ("", "## 2. Sources of data", "")
    yield from _table(
        ("Source", "Licence", "Agreement", "Records", "Bytes", "Rows trained", "Acquired"),
        [_source(one) for one in model.sources],
    )
    yield ""
    yield (
        f"Kind of each source (public data set, licensed, scraped, of users, synthetic), its "
        f"address and the period in which its data were collected: {_ASKED}, where its "
        "provenance chain does not say so."
    )


def _source(one: SourceAccount) -> tuple[str, ...]:
    agreed = one.source.agreement
    until = f" (until {agreed.expires})" if agreed and agreed.expires else ""
    return (
        _text(one.source.id),
        _text(one.license) or "not stated",
        f"{_text(agreed.id)}{until}" if agreed else "none stated",
        _count(one.records),
        _count(one.bytes),
        _count(one.rows),
        ", ".join(_text(time[:10]) for time in one.acquired) or "not recorded",
    )


def _processing(model: GovernedModel) -> Iterator[str]:
    account = model.account
    yield from ("", "## 3. Processing", "")
    share = "not known" if account.admission is None else f"{100 * account.admission:.1f} %"
    yield f"Share of rows that the policy admitted: {share}."
    if account.unverified:
        yield f"**Not verified: {_text(account.unverified)}.**"
    if not account.complete:
        yield "**The history of the weights is not known from their beginning.**"
    yield ""
    yield "Exposure of each layer: rows times the weight that the policy gives them, as counted."
    yield ""
    rows = [
        (_text(one.source.id), *(_cell(one, layer, w) for layer, w in _weights(model, one)))
        for one in model.sources
    ]
    covered = (units.percent(x) or "not covered" for x in account.coverage)
    rows.append(("covered by provenance chains", *covered))
    yield from _table(("Source", *map(_text, account.layers)), rows)
    if account.changes:
        yield from ("", "Changes under the policy:", "")
        named = ((one.number, recorded_words.change(one)) for one in account.changes)
        yield from (f"- {number:04d}: {_text(words)}" for number, words in named)
    yield ""
    yield "Influence that this account does not exclude:"
    yield ""
    yield from (f"- {one}" for one in model.account.residual_channels)
    yield ""
    yield f"Measures against unlawful content, and for opting out: {_ASKED}."


def _weights(model: GovernedModel, one: SourceAccount) -> Iterator[tuple[str, float]]:
    place = model.account.sources.index(one.source.id)
    return zip(model.account.layers, model.account.matrix[place], strict=True)


def _cell(one: SourceAccount, layer: str, weight: float) -> str:
    units = one.exposure[layer]
    return f"{units:,.10g}" if weight else f"denied, {units:,.10g} before" if units else "denied"


def _count(value: int | None) -> str:
    return "not recorded" if value is None else f"{value:,}"


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for line in (titles, ["---"] * len(titles), *rows):
        yield f"| {' | '.join(line)} |"


def _text(given: str) -> str:
    """Text of others on one line: nothing in it is Markdown or HTML, or moves a terminal."""
    line = escaped(" ".join(str(given).split()))
    return _SPECIAL.sub(r"\\\1", line).replace("&", "&amp;")
