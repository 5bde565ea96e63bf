"""The report: an experiment as one HTML file, readable without network and without JavaScript.

All charts are SVG made here; the page has no script at all. Its content security policy
allows one style sheet, by its hash, and nothing else: names and logs of users cannot do more
than be read.
"""

from __future__ import annotations

import base64
import hashlib
import time
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from hpcdet import shipped
from hpcdet.errors import NotFound
from hpcdet.read.experiment.gather import Gathered, gather
from hpcdet.read.lookup.escapes import escaped
from hpcdet.read.report.page import FILTERS, content
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files


def write(paths: ExperimentPaths, out: Path | None = None) -> Path:
    """Write the report of an experiment.

    Args:
        out: where to; ``EXP/report.html`` by default. An existing file is replaced.

    Returns:
        Where it was written.

    Raises:
        ConfigError: the experiment's config cannot be read.
        NotFound: the folder to write to does not exist.
    """
    target = out or paths.report
    if not target.absolute().parent.is_dir():
        raise NotFound("no such folder", where=str(target.parent), hint="make it first: mkdir -p")
    files.replace(target, render(gather(paths), time.time()).encode())
    return target


def render(gathered: Gathered, now: float) -> str:
    """Render the page of an experiment as of ``now``, in epoch seconds.

    The same folder and the same ``now`` give the same text.
    """
    folder = shipped.folder("templates") / "report"
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= FILTERS
    style = (folder / "style.css").read_text()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    page = environment.get_template("report.html.j2").render(
        **content(gathered, now), style=Markup(style), style_digest=digest
    )
    return escaped(page)
