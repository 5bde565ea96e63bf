"""The report: an experiment as one file, readable without network and without JavaScript.

The page's charts are SVG made here, and tables beside them say the same; where scripts may run,
ECharts draws them again, for looking closer. The content security policy allows one style sheet
and these scripts, by their hashes, and nothing else: names and logs of users cannot do more than
be read.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from markupsafe import Markup

from hpcdet import shipped
from hpcdet.errors import NotFound, UsageError
from hpcdet.read.experiment.gather import Gathered, gather
from hpcdet.read.lookup.escapes import escaped
from hpcdet.read.report import embedded
from hpcdet.read.report.markdown import markdown
from hpcdet.read.report.page import content, data, templates
from hpcdet.read.sections import whole
from hpcdet.read.sections.extent import ReportExtent
from hpcdet.read.sections.redaction import redaction
from hpcdet.read.views.items import encode
from hpcdet.store.folder import trust
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files

Format = Literal["html", "json", "md"]
SCHEMA = "hpcdet.report/1"
MB = 10**6


@dataclass(frozen=True)
class ReportOptions:
    """How a report is made.

    Attributes:
        format: a page, its data as JSON, or these as Markdown.
        max_mb: size of the file at most; curves, tables and lanes are cut for it.
        redact: some of ``redaction.KINDS``.
        anonymous: redact all of them, and what names the experiment.
        plain: a page without scripts.
        refresh_s: the page loads itself again after so many seconds; 0: it does not.
        live: ETag of a server's page, which loads itself again once the server has another one;
            "": it is a file.
    """

    format: Format = "html"
    max_mb: float = 10.0
    redact: Collection[str] = ()
    anonymous: bool = False
    plain: bool = False
    refresh_s: int = 0
    live: str = ""


def write(
    source: ExperimentPaths | Gathered,
    out: Path | None = None,
    options: ReportOptions | None = None,
) -> Path:
    """Write the report of an experiment.

    Args:
        out: where to; by default ``EXP/report.html``, of another user's experiment
            ``ID-report.html`` in the current folder; or ``.json``, ``.md``. An existing file is
            replaced.

    Returns:
        Where it was written.

    Raises:
        ConfigError: the experiment's config cannot be read.
        NotFound: the folder to write to does not exist.
        UsageError: the file would be larger than it may.
    """
    options = options or ReportOptions()
    gathered = gather(source)
    paths = gathered.paths
    place = paths.report if trust.is_own(paths.root) else Path(f"{paths.id}-report.html")
    target = out or place.with_suffix(f".{options.format}")
    if not target.absolute().parent.is_dir():
        raise NotFound("no such folder", where=str(target.parent), hint="make it first: mkdir -p")
    files.replace(target, render(gathered, moment(), options).encode())
    return target


def moment() -> float:
    """Return the time of a report, in epoch seconds: ``SOURCE_DATE_EPOCH`` if set, else now."""
    given = os.environ.get("SOURCE_DATE_EPOCH", "")
    if not given:
        return time.time()
    try:
        return float(int(given))
    except ValueError as error:
        hint = "it is a whole number of seconds since 1970"
        raise UsageError(f"{given!r} is no time", where="SOURCE_DATE_EPOCH", hint=hint) from error


def render(gathered: Gathered, now: float, options: ReportOptions | None = None) -> str:
    """Render the report of an experiment as of ``now``, in epoch seconds.

    The same folder and the same ``now`` give the same text.
    """
    options = options or ReportOptions()
    text = ""
    for extent in ReportExtent().smaller():
        text = _render(gathered, now, options, extent)
        if len(text.encode()) <= options.max_mb * MB:
            return text
    what = f"the smallest report has {len(text.encode()) / MB:.2g} MB"
    hint = "--max-mb allows more; --plain leaves out scripts and their data"
    raise UsageError(what, where="--max-mb", hint=hint)


def _render(gathered: Gathered, now: float, options: ReportOptions, extent: ReportExtent) -> str:
    hide = redaction(gathered, options.redact, options.anonymous)
    report = hide.report(whole.report(gathered, now, extent, environment=not hide.env))
    if options.format == "json":
        made: dict[str, Any] = {"schema": SCHEMA, **encode(report)}
        return escaped(json.dumps(made, indent=1, allow_nan=False, ensure_ascii=False) + "\n")
    if options.format == "md":
        return escaped(markdown(report))
    folder = shipped.folder("templates") / "report"
    style = (folder / "style.css").read_text()
    scripts = None if options.plain else embedded.scripts(folder, data(report), bool(options.live))
    page = (
        templates(folder)
        .get_template("report.html.j2")
        .render(
            **content(report, gathered, hide),
            style=Markup(style),
            style_digest=embedded.digest(style),
            scripts=scripts,
            own=Markup(scripts.own) if scripts else "",
            refresh_s=options.refresh_s,
            live=options.live,
        )
    )
    return escaped(page)
