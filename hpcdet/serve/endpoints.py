"""``/api/v1/``: what the reading verbs print as JSON, over HTTP."""

from __future__ import annotations

import itertools
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hpcdet.errors import NotFound, UsageError
from hpcdet.read import listing
from hpcdet.read.experiment.gather import Gathered
from hpcdet.read.explanation import findings
from hpcdet.read.listing import Filters
from hpcdet.read.usage import usage_table
from hpcdet.read.views import logs, measured, views
from hpcdet.read.views.items import keys
from hpcdet.read.views.list_rows import ExperimentView
from hpcdet.read.views.logs import LogLine
from hpcdet.registry import version_views, versions_beside_trials
from hpcdet.serve.answers import answered, envelope
from hpcdet.serve.query_parameters import LONGEST, Query
from hpcdet.serve.served_experiments import ServedExperiments
from hpcdet.store.config import bounded_patterns
from hpcdet.store.folder.records import TrialState

_MOST_ROWS, _MOST_LINES, _MOST_POINTS = 10_000, 10_000, 100_000
_LONGEST_LINE, _LONGEST_SEARCH_S = 4000, 5.0
"""Characters of a line, and seconds, in which ``grep`` searches."""
_TRIALS = 10**9
_STATES = get_args(TrialState)


Answer = Callable[[Request, Query], Response]


@dataclass(frozen=True)
class Address:
    """One address: the method of ``Api`` that answers, the verb whose items it has, parameters."""

    path: str
    name: str
    verb: str
    parameters: Mapping[str, Mapping[str, Any]]


_ANY: Mapping[str, Any] = {"type": "string", "maxLength": LONGEST}
_MANY: Mapping[str, Any] = {"type": "array", "items": {**_ANY, "pattern": "[^, ]"}}


def _up_to(most: int, least: int = 0) -> Mapping[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": most}


def _of(choices: Sequence[str]) -> Mapping[str, Any]:
    return {"type": "string", "enum": list(choices)}


_ID = {"type": "string", "minLength": 1, "maxLength": 100, "pattern": "^[^, ]+$"}
_IDS = {"type": "array", "items": _ID, "minItems": 2, "uniqueItems": True}
_ONE = "/experiments/{id}"
_TRIAL = {"trial": _up_to(_TRIALS)}
_STATE = {"type": "array", "items": _of(_STATES)}
_GREP = (
    f"A regular expression of Python's re, searched for in the first {_LONGEST_LINE} characters of "
    "a line. One that may take long on some text, as its repeats could fit it in very many ways "
    "(.*a.*b.*c, (a+)+), is refused with 400, and so is a search of more than "
    f"{_LONGEST_SEARCH_S:g} s. One repeat between two words is always taken: loss.*nan."
)
_WHOLE_TRIALS = (
    "An answer ends with the trial with which it has so many rows or more; next is the cursor of "
    "the one that goes on, by trials in their order."
)
ADDRESSES = (
    Address(
        "/experiments",
        "experiments",
        "ls",
        {
            "state": _STATE,
            **dict.fromkeys(("tag", "user", "project"), _MANY),
            "q": _ANY,
            "sort": _of([sign + key for _, key, _ in keys(ExperimentView) for sign in ("", "-")]),
            "limit": _up_to(_MOST_ROWS, 1),
            "cursor": _up_to(_TRIALS),
        },
    ),
    Address(_ONE, "experiment", "show", {}),
    Address(f"{_ONE}/trials", "trials", "ls", {"state": _STATE}),
    Address(
        f"{_ONE}/metrics",
        "metrics",
        "metrics",
        {
            "name": _ANY,
            "group": _ANY,
            **_TRIAL,
            "x": _of(("step", "epoch", "wall")),
            "points": _up_to(_MOST_POINTS),
            "limit": {**_up_to(_MOST_POINTS, 1), "description": _WHOLE_TRIALS},
            "cursor": _up_to(_TRIALS),
        },
    ),
    Address(
        f"{_ONE}/logs",
        "logs",
        "logs",
        {
            **_TRIAL,
            "attempt": _up_to(_TRIALS),
            "rank": {"type": "array", "items": _up_to(_TRIALS)},
            "grep": {**_ANY, "format": "regex", "description": _GREP},
            "after": _ANY,
            "level": _of(("", *logs.LEVELS)),
            "limit": _up_to(_MOST_LINES, 1),
        },
    ),
    Address(f"{_ONE}/events", "events", "events", {**_TRIAL, "kind": _MANY}),
    Address(f"{_ONE}/checkpoints", "checkpoints", "ckpt.ls", _TRIAL),
    Address(f"{_ONE}/explain", "explain", "explain", _TRIAL),
    Address("/compare", "compare", "compare", {"ids": _IDS}),
    Address("/models", "models", "registry.ls", {"name": _ANY}),
    Address("/usage", "usage", "usage", {"by": {"type": "array", "items": _of(usage_table.KEYS)}}),
)
"""All but ``/openapi.json``, which describes them."""


class Api:
    """The addresses below ``/api/v1/``.

    Args:
        registry: the folder of registered models.
    """

    def __init__(self, sources: ServedExperiments, registry: Path) -> None:
        self._sources, self._registry = sources, registry

    def routes(self) -> list[Route]:
        """Return all addresses."""
        return [Route(one.path, self._answering(one)) for one in ADDRESSES]

    def _answering(self, address: Address) -> Callable[[Request], Response]:
        answer: Answer = getattr(self, address.name)

        return answered(lambda request: answer(request, Query(request, address.parameters)))

    def experiments(self, request: Request, query: Query) -> Response:
        """List experiments: items of ``ls``, and where the next ones begin."""
        filters = Filters(
            states=_known_states(query.words("state")),
            tags=query.words("tag"),
            users=query.words("user"),
            projects=query.words("project"),
        )
        rows, warnings = listing.listed(
            self._sources.root, filters, sort=query.text("sort") or "-created"
        )
        if wanted := query.text("q").lower():
            rows = [row for row in rows if wanted in _words(row)]
        first = query.number("cursor", 0, _TRIALS)
        last = first + query.number("limit", 100, _MOST_ROWS, 1)
        more = {"next": str(last)} if last < len(rows) else {}
        return envelope(request, "ls", rows[first:last], warnings, **more)

    def experiment(self, request: Request, query: Query) -> Response:
        """Return the item of ``show``."""
        return self._answer(request, "show", lambda gathered: [views.show(gathered)])

    def trials(self, request: Request, query: Query) -> Response:
        """Return items of ``ls --trials`` of one experiment."""
        states = _known_states(query.words("state"))
        return self._answer(
            request,
            "ls",
            lambda gathered: [
                row for row in views.trials(gathered) if not states or row.state in states
            ],
        )

    def metrics(self, request: Request, query: Query) -> Response:
        """Return items of ``metrics --x`` of whole trials, and where the next ones begin.

        At most ``points`` of each trial and name.
        """
        first = query.number("cursor", 0, _TRIALS)
        limit = query.number("limit", 4000, _MOST_POINTS, 1)
        asked: dict[str, Any] = {
            "name": query.text("name", "*"),
            "group": query.text("group", "*"),
            "x": query.one_of("x", ("step", "epoch", "wall"), "step"),
            "points": query.number("points", _MOST_POINTS, _MOST_POINTS),
        }
        with self._sources.gathered(self._sources.find(request.path_params["id"])) as gathered:
            one = _trial(gathered, query)
            numbers = [one] if one else [paths.number for paths in gathered.paths.trials()]
            rows: list[Any] = []
            for number in numbers:
                if number < first:
                    continue
                if len(rows) >= limit:
                    return envelope(request, "metrics", rows, next=str(number))
                rows += measured.metrics(gathered, trial=number, **asked)
            return envelope(request, "metrics", rows)

    def logs(self, request: Request, query: Query) -> Response:
        """Return items of ``logs``: the last ``limit`` lines that fit."""
        limit = query.number("limit", 1000, _MOST_LINES, 1)
        level = query.one_of("level", ("", *logs.LEVELS), "")
        pattern = _pattern(query.text("grep"))

        def rows(gathered: Gathered) -> list[Any]:
            chosen = logs.sources(
                gathered.paths,
                trial=_trial(gathered, query),
                attempt=query.number("attempt", 0, _TRIALS),
                ranks=query.numbers("rank", _TRIALS),
            )
            lines = itertools.chain.from_iterable(
                logs.read(source, since=query.text("after"), level=level, whole=False)
                for source in chosen
            )
            return list(deque(_searched(lines, pattern) if pattern.pattern else lines, limit))

        return self._answer(request, "logs", rows)

    def events(self, request: Request, query: Query) -> Response:
        """Return items of ``events``."""
        kinds = query.words("kind")
        return self._answer(
            request,
            "events",
            lambda gathered: [
                event
                for event in views.events(gathered, _trial(gathered, query))
                if not kinds or event.kind in kinds
            ],
        )

    def checkpoints(self, request: Request, query: Query) -> Response:
        """Return items of ``ckpt ls``."""
        return self._answer(
            request,
            "ckpt.ls",
            lambda gathered: views.checkpoints(gathered, _trial(gathered, query)),
        )

    def explain(self, request: Request, query: Query) -> Response:
        """Return items of ``explain``; commands name experiments as from elsewhere."""
        return self._answer(
            request,
            "explain",
            lambda gathered: findings.explain(gathered, _trial(gathered, query)),
        )

    def compare(self, request: Request, query: Query) -> Response:
        """Return items of ``compare``."""
        rows, warnings = versions_beside_trials.compare(
            query.words("ids"), self._sources.reference, lambda: self._registry, self._sources.facts
        )
        return envelope(request, "compare", rows, warnings)

    def models(self, request: Request, query: Query) -> Response:
        """Return items of ``registry ls``, or with ``name`` those of ``registry versions``."""
        name = query.text("name")
        if name:
            found = version_views.versions(self._registry, name)
            return envelope(request, "registry.versions", found.items, found.warnings)
        found = version_views.newest(self._registry)
        return envelope(request, "registry.ls", found.items, found.warnings)

    def usage(self, request: Request, query: Query) -> Response:
        """Return items of ``usage``."""
        by = usage_table.checked(query.words("by") or ["user", "project"])
        rows, warnings = self._sources.usage(self._sources.experiments(), by)
        return envelope(request, "usage", usage_table.table(rows, by), warnings)

    def _answer(
        self, request: Request, verb: str, view: Callable[[Gathered], Sequence[Any]]
    ) -> Response:
        with self._sources.gathered(self._sources.find(request.path_params["id"])) as gathered:
            return envelope(request, verb, view(gathered))


def _known_states(given: Sequence[str]) -> Sequence[str]:
    if unknown := [state for state in given if state not in _STATES]:
        hint = f"there are: {', '.join(_STATES)}"
        raise UsageError(f"{unknown[0][:40]!r} is no state", where="state", hint=hint)
    return given


def _trial(gathered: Gathered, query: Query) -> int:
    """Return the trial that is asked for; 0: all. Raises NotFound: there is none of that number."""
    number = query.number("trial", 0, _TRIALS)
    if number and gathered.trial(number) is None:
        raise NotFound(f"no trial {number}", where=gathered.id)
    return number


def _words(row: Any) -> str:
    return " ".join([row.id, row.name, row.description, row.user, row.project, *row.labels]).lower()


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(bounded_patterns.expression(text, _LONGEST_LINE))
    except ValueError as error:
        hint = "search for words, with one repeat between two of them at most: loss.*nan"
        raise UsageError(str(error.args[0]), where="grep", hint=hint) from error


def _searched(lines: Iterable[LogLine], pattern: re.Pattern[str]) -> Iterator[LogLine]:
    """Yield the lines in which a pattern is found. Raises UsageError: that takes too long."""
    until = time.monotonic() + _LONGEST_SEARCH_S
    for line in lines:
        if pattern.search(line.text, 0, _LONGEST_LINE):
            yield line
        if time.monotonic() > until:
            hint = "search in fewer lines (trial, attempt, rank, after), or with hpcdet logs --grep"
            what = f"the search took more than {_LONGEST_SEARCH_S:g} s"
            raise UsageError(what, where="grep", hint=hint)
