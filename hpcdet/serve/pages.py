"""Pages for a browser: lists, an experiment's report that follows, a trial, comparisons."""

from __future__ import annotations

import dataclasses
import itertools
import shlex
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from hpcdet import shipped, units
from hpcdet.errors import HpcdetError, NotFound
from hpcdet.read import catalog, listing, report
from hpcdet.read.comparison.facts import shown
from hpcdet.read.experiment import states
from hpcdet.read.explanation import findings
from hpcdet.read.explanation.finding_view import FindingView
from hpcdet.read.listing import Filters
from hpcdet.read.lookup.escapes import escaped
from hpcdet.read.report import ReportOptions, embedded
from hpcdet.read.report.page import templates
from hpcdet.read.report.scale import slot_time
from hpcdet.read.usage import usage_table
from hpcdet.read.usage.slot_hours import SlotHoursView
from hpcdet.read.views import logs, views
from hpcdet.read.views.items import set_to, text
from hpcdet.registry import version_views, versions_beside_trials
from hpcdet.registry.version_views import VersionView
from hpcdet.serve.answers import answered, etag, failed, status_of, unchanged
from hpcdet.serve.query_parameters import Query
from hpcdet.serve.served_experiments import ServedExperiments
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files

_SHOWN, _LINES, _LONG = 200, 200, {"code": 12}
_POLICY = {"content-security-policy": "frame-ancestors 'none'"}
"""The rest of a page's policy is in the page, so that a saved one has it, too."""


@dataclass(frozen=True)
class PageCell:
    """A cell of a table; ``href``: where it leads."""

    text: str
    href: str = ""


@dataclass(frozen=True)
class PagePart:
    """A part of a page: words, and a table or a text.

    Attributes:
        nothing: said where there are no rows.
        folded: shown once somebody opens it.
    """

    id: str
    title: str
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[PageCell]] = ()
    words: str = ""
    text: str = ""
    nothing: str = "Nothing yet."
    folded: bool = False

    @property
    def filled(self) -> Sequence[int]:
        """Places of the columns in which any row has something."""
        return [n for n in range(len(self.columns)) if any(row[n].text for row in self.rows)]


@dataclass(frozen=True)
class Page:
    """Contents of a page; ``command`` and ``python`` print the same."""

    title: str
    parts: Sequence[PagePart]
    command: str
    python: str
    warnings: Sequence[str] = field(default_factory=tuple)


class Pages:
    """Handlers of all pages of one root and one registry."""

    def __init__(self, sources: ServedExperiments, registry: Path) -> None:
        self._sources, self._registry = sources, registry

    def routes(self) -> list[Route]:
        """Return all addresses."""
        pages: dict[str, Callable[[Request], Response]] = {
            "/": self._list,
            "/e/{id}": self._experiment,
            "/e/{id}/{trial:int}": self._trial,
            "/compare": self._compare,
            "/models": self._models,
            "/usage": self._usage,
        }
        return [Route(path, answered(page, self._failed)) for path, page in pages.items()]

    def _failed(self, request: Request, error: HpcdetError) -> Response:
        """Answer with an error: people read a page, and programs what the API says."""
        if "text/html" not in request.headers.get("accept", ""):
            return failed(request, error)
        what = ": ".join(filter(None, (error.where, error.what)))
        words = ". ".join(filter(None, (what, error.hint)))
        page = Page(
            "Not shown",
            [PagePart("error", "Why", words=words)],
            "hpcdet ls",
            "from hpcdet import client\n\nclient.experiments()",
        )
        return HTMLResponse(self._made(page, ()), status_of(error), headers=_POLICY)

    def _list(self, request: Request) -> Response:
        Query(request, ())
        rows, warnings = listing.listed(self._sources.root, Filters(), sort="-created")
        spent, _ = self._sources.usage(self._sources.experiments()[-_SHOWN:], ("state",))
        more = len(rows) - _SHOWN
        parts = [
            PagePart(
                "experiments",
                "Experiments",
                (
                    "Experiment",
                    "State",
                    "Why",
                    "Done",
                    "Best",
                    "Metric",
                    "Made (UTC)",
                    "Name",
                    "Project",
                    "User",
                    "Labels",
                ),
                [_of_experiment(row) for row in rows[:_SHOWN]],
                words=f"Older ones left out: {more}; hpcdet ls shows all." if more > 0 else "",
                nothing="No experiment yet: hpcdet submit makes one.",
            ),
            _hours(
                usage_table.table(spent, ("state",)),
                ("state",),
                f"Of the newest {_SHOWN} experiments; hpcdet usage counts all." if more > 0 else "",
            ),
        ]
        python = "from hpcdet import client\n\nfor one in client.experiments():\n"
        page = Page("Experiments", parts, "hpcdet ls", f"{python}    print(one.id, one.state)")
        return self._shown(request, page, warnings)

    def _experiment(self, request: Request) -> Response:
        Query(request, ())
        paths = self._sources.find(request.path_params["id"])
        seen = catalog.appearance(paths) + states.reasons(paths)
        if (same := unchanged(request, seen)) is not None:
            return same
        with self._sources.gathered(paths) as gathered:
            options = ReportOptions(live=etag(seen))
            page = report.render(gathered, time.time(), options)
        return HTMLResponse(page, headers={**_POLICY, "etag": etag(seen)})

    def _trial(self, request: Request) -> Response:
        Query(request, ())
        paths, number = self._sources.find(request.path_params["id"]), request.path_params["trial"]
        with self._sources.gathered(paths) as gathered:
            if (trial := gathered.trial(number)) is None:
                raise NotFound(f"no trial {number}", where=paths.id)
            params = trial.record.params if trial.record else {}
            known = findings.explain(gathered, number)
            attempts = views.attempts(gathered, number)
            kept = views.checkpoints(gathered, number)
            lines = itertools.chain.from_iterable(
                logs.read(source, whole=False) for source in logs.sources(paths, trial=number)
            )
            last = "\n".join(f"{one.rank}: {one.text}" for one in deque(lines, _LINES))
        parts = [
            PagePart(
                "why",
                "State, and why",
                text="\n\n".join(_finding(one) for one in known),
            ),
            PagePart(
                "hyperparameters",
                "Hyperparameters",
                ("Name", "Value"),
                [_cells(name, set_to(value)) for name, value in params.items()],
            ),
            PagePart(
                "attempts",
                "Attempts",
                ("Attempt", "Ended", "Steps", "Start (UTC)", "Took", "Job", "Nodes", "Error"),
                [
                    _cells(
                        one.attempt,
                        one.reason.replace("_", " ") or "runs",
                        one.steps,
                        _short(one.start or ""),
                        units.duration(one.duration_s) if one.duration_s is not None else "",
                        one.job,
                        one.nodes,
                        one.error,
                    )
                    for one in attempts
                ],
            ),
            PagePart(
                "checkpoints",
                "Checkpoints",
                ("Step", "State", "Size", "Kept because"),
                [
                    _cells(one.step, one.state, units.size(one.bytes or 0), ", ".join(one.kept))
                    for one in kept
                ],
            ),
            PagePart("logs", "Last lines of its output", text=last, nothing="No output yet."),
        ]
        name = f"{paths.id}/{number}"
        python = f"from hpcdet import client\n\nclient.get({paths.id!r}).metrics(trial={number})"
        page = Page(name, parts, f"hpcdet explain {name}\nhpcdet logs {name}", python)
        return self._shown(request, page, seen=catalog.appearance(paths) + last)

    def _compare(self, request: Request) -> Response:
        ids = Query(request, ("ids",)).words("ids")
        rows, warnings = versions_beside_trials.compare(
            ids, self._sources.reference, lambda: self._registry, self._sources.facts
        )
        names = list(dict.fromkeys(id for row in rows for id in row.values))
        parts = [
            PagePart(
                which,
                title,
                ("What", "Name", *names),
                [
                    _cells(
                        row.what,
                        row.name,
                        *(shown(row.what, row.values[id])[: _LONG.get(row.what)] for id in names),
                    )
                    for row in rows
                    if row.same == same
                ],
                nothing="Nothing.",
                folded=same,
            )
            for which, title, same in (
                ("differs", "What differs", False),
                ("same", "The same", True),
            )
        ]
        words = shlex.join(ids)
        python = f"from hpcdet import client\n\nclient.compare({', '.join(map(repr, ids))})"
        return self._shown(
            request, Page("Compare", parts, f"hpcdet compare {words}", python), warnings
        )

    def _models(self, request: Request) -> Response:
        Query(request, ())
        found = version_views.newest(self._registry)
        columns = ("Model", "Version", "Aliases", "From", "Step", "Metrics", "Added (UTC)", "By")
        rows = [
            _cells(
                one.model,
                one.version,
                one.aliases,
                f"{one.experiment}/{one.trial}",
                one.step,
                one.metrics,
                _short(one.created),
                one.by,
            )
            for one in found.items
        ]
        nothing = "No model yet: hpcdet registry add NAME ID --best"
        parts = [PagePart("models", "Models", columns, rows, nothing=nothing)]
        if found.items:
            words = "This page only reads. Commands to copy, of the newest versions:"
            commands = "\n\n".join(_changes(one) for one in found.items)
            parts.append(PagePart("changes", "Change", words=words, text=commands))
        python = "from hpcdet import client\n\nclient.models()"
        page = Page("Models", parts, "hpcdet registry ls", python)
        return self._shown(request, page, found.warnings)

    def _usage(self, request: Request) -> Response:
        by = usage_table.checked(
            Query(request, ("by",)).words("by") or ["user", "project", "month"]
        )
        rows, warnings = self._sources.usage(self._sources.experiments(), by)
        part = _hours(usage_table.table(rows, by), by)
        python = f"from hpcdet import client\n\nclient.usage({[*by]!r})"
        page = Page("Usage", [part], f"hpcdet usage --by {','.join(by)}", python)
        return self._shown(request, page, warnings)

    def _shown(
        self, request: Request, page: Page, warnings: Sequence[str] = (), seen: str = ""
    ) -> Response:
        """Answer with a page; ``seen``: what tells it from an older one, if not all of it."""
        seen = seen or repr((page, warnings))
        if (same := unchanged(request, seen)) is not None:
            return same
        headers = {**_POLICY, "etag": etag(seen)}
        return HTMLResponse(self._made(page, warnings, etag(seen)), headers=headers)

    def _made(self, page: Page, warnings: Sequence[str], tag: str = "") -> str:
        """Return a page's text; without a tag it is that of an error, and follows nothing."""
        folder = shipped.folder("templates")
        style = (folder / "report" / "style.css").read_text()
        script = f'"use strict";\n{(folder / "report" / "script" / embedded.LIVE).read_text()}'
        return escaped(
            templates(folder / "live")
            .get_template("page.html.j2")
            .render(
                title=page.title,
                parts=page.parts,
                command=page.command,
                python=page.python,
                warnings=warnings,
                place=str(self._sources.root),
                now=files.now()[:19].replace("T", " "),
                tag=tag,
                style=Markup(style),
                style_digest=embedded.digest(style),
                script=Markup(script),
                script_digest=embedded.digest(script),
            )
        )


def _of_experiment(row: Any) -> Sequence[PageCell]:
    id = quote(row.id)
    best = PageCell(text(row.best), f"/e/{id}/{row.best_trial}" if row.best_trial else "")
    return (
        PageCell(row.id, f"/e/{id}"),
        *_cells(row.state, _why(row), units.percent(row.progress)),
        best,
        *_cells(row.metric, _short(row.created), row.name, row.project, row.user, row.labels),
    )


def _why(row: Any) -> str:
    """Return why an experiment is in its state; of one that goes on, what its tasks wait for."""
    if row.why or row.state in states.ENDED:
        return str(row.why)
    waits = states.reasons(ExperimentPaths(Path(row.path)))
    return f"tasks wait in the queue: {waits}" if waits else ""


def _changes(of: VersionView) -> str:
    """Return the commands that change a version's aliases, labels and notes."""
    name = f"{of.model}:{of.version}"
    aliases = [f"unalias {of.model}@{alias}" for alias in of.aliases]
    verbs = [f"alias {name} production", *aliases, f"label {name} --add LABEL"]
    verbs += [f"note {name} TEXT", *([] if aliases else [f"archive {name}", f"rm {name}"])]
    return "\n".join(f"hpcdet registry {verb}" for verb in verbs)


def _short(created: str) -> str:
    return created[:16].replace("T", " ")


def _hours(rows: Sequence[usage_table.UsageView], by: Sequence[str], words: str = "") -> PagePart:
    kinds = [one.name for one in dataclasses.fields(SlotHoursView)]
    kinds = ["allocated", *(kind for kind in kinds if kind != "allocated")]
    return PagePart(
        "hours",
        "Where the slot hours went",
        [name.capitalize() for name in (*by, "experiments", *kinds)],
        [
            _cells(
                *(row.by[key] or "-" for key in by),
                row.experiments,
                *(_slot_time(getattr(row.slot_hours, kind)) for kind in kinds),
            )
            for row in rows
        ],
        words=" ".join(filter(None, ("All kinds but queued add up to allocated.", words))),
    )


def _slot_time(hours: float) -> str:
    return slot_time(3600 * hours) if hours else "0"


def _finding(one: FindingView) -> str:
    """Format a finding as ``explain`` prints it."""
    next = [f"  next: {one.next}"] if one.next else []
    return "\n".join([f"{one.about}: {one.finding}", *(f"    {e}" for e in one.evidence), *next])


def _cells(*values: Any) -> list[PageCell]:
    return [PageCell("" if value in (None, "", [], {}) else text(value)) for value in values]
