"""``doctor``: checks of this machine, its file system, its scheduler and a node."""

from __future__ import annotations

from collections.abc import Iterator

import click

from hpcdet.cli.frame.output import Column, Output, output
from hpcdet.cli.frame.progress import busy
from hpcdet.cli.frame.settings import settings
from hpcdet.cli.frame.times import Seconds
from hpcdet.errors import HpcdetError
from hpcdet.jobs import one_shot_job
from hpcdet.jobs.checks import machine_checks, node_checks, site_checks
from hpcdet.jobs.checks.site_checks import SiteFinding
from hpcdet.jobs.script.environment import fold_defaults
from hpcdet.schedulers import opening
from hpcdet.site import folders

COLUMNS = (
    Column("", "level"),
    Column("WHAT", "what", fold=True),
    Column("HINT", "hint", fold=True),
)
BOTH = (Column("CHECK", "check"), Column("HERE", "here"), Column("NODE", "node"))

WALLTIME_S = 300
"""Of the job on a node. It takes seconds; torch from a cold shared file system takes minutes."""


@click.command("doctor", short_help="Check this machine, its scheduler and file system.")
@click.option("--site", "site_name", metavar="NAME", help="Site [$HPCDET_SITE, else detected].")
@click.option("--node", is_flag=True, help="Check a node as well, by a short job.")
@click.option("--partition", metavar="NAME", help="With --node: where [the site's default].")
@click.option(
    "--timeout",
    type=Seconds(least=1),
    default=600,
    metavar="TIME",
    help="With --node: how long to wait for the job [600].",
)
@click.option("--strict", is_flag=True, help="Warnings count as failures.")
@output("doctor", SiteFinding)
def doctor_command(
    out: Output,
    site_name: str | None,
    node: bool,
    partition: str | None,
    timeout: float,
    strict: bool,
) -> None:
    """Check interpreter, packages, file system and scheduler. Exit 1 if a check fails.

    With --node a short job looks at the same things on a node. Ctrl-C cancels it.

    \b
    Examples: hpcdet doctor --site generic-slurm
              hpcdet doctor --node --partition gpu
    """
    found = [
        *machine_checks.python(),
        *machine_checks.guarded("files", lambda: machine_checks.folder(settings().root)),
        *machine_checks.guarded("site", lambda: _site(site_name)),
    ]
    if node:
        found += machine_checks.guarded("job", lambda: _both(site_name, partition, timeout))
    if node and out.for_people and not out.fields:
        out.emit(_side_by_side(found), BOTH)
        for finding in found:
            if finding.hint and finding.level != "ok":
                settings().note(f"{finding.where}, {finding.check}: {finding.hint}")
    else:
        out.emit(found, COLUMNS, key="what")
    bad = ("error", "warning") if strict else ("error",)
    wrong = [finding for finding in found if finding.level in bad]
    if wrong:
        raise HpcdetError(f"{len(wrong)} findings", hint=wrong[0].hint or wrong[0].what)


def _site(name: str | None) -> Iterator[SiteFinding]:
    found = settings().site(name)
    site, assumed = opening.of(found).facts.resolved(found)
    yield SiteFinding("ok", f"site {site.name}: {site.reason}")
    if assumed:
        yield SiteFinding(
            "warning", f"site {site.name}: {assumed}", "ask again: hpcdet site detect"
        )
    if site.fallback and (sign := site_checks.login_node()):
        hint = "name a site with a scheduler by --site or HPCDET_SITE"
        yield SiteFinding(
            "warning", f"this looks like a login node ({sign}) without a scheduler", hint
        )
    apart = folders.scratch(site, settings().root_at(site))
    if apart is not None:
        yield from machine_checks.folder(apart)
    yield from site_checks.site_findings(site)


def _both(name: str | None, partition: str | None, timeout: float) -> Iterator[SiteFinding]:
    """Check what ranks need: imports on this machine, then a node."""
    site = fold_defaults(settings().site(name))
    with one_shot_job.folder(settings().root_at(site)) as place, busy("checking a node"):
        yield from machine_checks.guarded("torch", lambda: machine_checks.imports(place))
        yield from node_checks.findings(site, partition, place, timeout, WALLTIME_S)


def _side_by_side(found: list[SiteFinding]) -> list[dict[str, str]]:
    """Return a row for each check, with the results here and on the node."""
    rows: list[dict[str, str]] = []
    for finding in found:
        said = finding.what if finding.level == "ok" else f"{finding.level.upper()} {finding.what}"
        same = (row for row in rows if row["check"] == finding.check and not row[finding.where])
        row = next(same, None)
        if row is None:
            row = {"check": finding.check, "here": "", "node": ""}
            rows.append(row)
        row[finding.where] = said
    return rows
