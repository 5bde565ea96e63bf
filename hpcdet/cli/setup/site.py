"""``site``: the facts known of a cluster, and their origins."""

from __future__ import annotations

from typing import Any

import click

from hpcdet.cli.frame.output import Column, Output, output
from hpcdet.cli.frame.progress import telling
from hpcdet.cli.frame.settings import settings
from hpcdet.cli.frame.times import Seconds
from hpcdet.cli.setup import site_authoring
from hpcdet.errors import ConfigError
from hpcdet.jobs import one_shot_job
from hpcdet.jobs.diagnosis import finding as of_site
from hpcdet.jobs.diagnosis import node_checks, site_findings, tried_submissions
from hpcdet.jobs.diagnosis.finding import SiteFinding
from hpcdet.jobs.script.environment import fold_defaults
from hpcdet.read.views.items import typed
from hpcdet.schedulers import opening
from hpcdet.site import Site
from hpcdet.site_files import load_site

FINDINGS = (
    Column("", "level"),
    Column("WHAT", "what", fold=True),
    Column("HINT", "hint", fold=True),
)

JOB_WALLTIME_S = 120
"""Of the job that proves a site."""


def _resolved(site: Site, *, ask: bool = True, fresh: bool = False) -> Site:
    """Return the site completed with facts from its cluster; print a note on assumed ones."""
    found, assumed = opening.of(site).facts.resolved(site, ask=ask, fresh=fresh)
    if assumed:
        settings().note(f"site {site.name}: {assumed}")
    return found


@click.group("site", short_help="Show, detect and check sites (what is known of a cluster).")
def site_command() -> None:
    """Sites: the files that describe a cluster.

    \b
    Example: hpcdet site detect
    """


@site_command.command("ls")
@output("site.ls")
def ls(out: Output) -> None:
    """List every site file, nearest first.

    \b
    Example: hpcdet site ls
    """
    rows = [{"id": f.name, "scope": f.scope, "path": str(f.path)} for f in load_site.names()]
    columns = (Column("NAME", "id"), Column("SCOPE", "scope"), Column("PATH", "path"))
    out.emit(rows, columns)


@site_command.command("show")
@click.argument("name", required=False)
@click.option("--origin", is_flag=True, help="Where each value comes from.")
@click.option(
    "--offline", is_flag=True, help="Do not ask the cluster for what the file leaves open."
)
@output("site.show")
def show(out: Output, name: str | None, origin: bool, offline: bool) -> None:
    """Show a site with all it extends; without NAME the one that would be used here.

    What the file leaves open (null) is what the cluster said, at most a day ago.

    \b
    Example: hpcdet site show generic-slurm --origin
    """
    chosen = _resolved(settings().site(name), ask=not offline)
    leaves = [
        {"id": key, "value": value, "origin": chosen.origins.get(key, "default")}
        for key, value in load_site.walk(chosen.plain())
    ]
    if out.for_people and not out.fields:
        if origin:
            for leaf in leaves:
                click.echo(f"{leaf['id']}: {typed(leaf['value'])}    # {leaf['origin']}")
        else:
            click.echo(load_site.dump(chosen).decode(), nl=False)
        return
    item: dict[str, Any] = {"id": chosen.name, **chosen.plain(), "reason": chosen.reason}
    out.emit(leaves if origin else [item], ())


@site_command.command("detect")
@output("site.detect")
def detect(out: Output) -> None:
    """Show which site fits this host, and why; query its cluster again for missing facts.

    \b
    Example: hpcdet site detect
    """
    chosen = _resolved(settings().site(), fresh=True)
    item = {"id": chosen.name, "reason": chosen.reason, "path": chosen.source}
    columns = (
        Column("SITE", "id", cut=False),
        Column("BECAUSE", "reason", fold=True),
        Column("FILE", "path", fold=True),
    )
    out.emit([item], columns)


@site_command.command("check")
@click.argument("name", required=False)
@click.option("--job", is_flag=True, help="Prove it by a two-minute job as well.")
@click.option("--partition", metavar="NAME", help="With --job: where [the site's default].")
@click.option(
    "--timeout",
    type=Seconds(least=1),
    default=600,
    metavar="TIME",
    help="With --job: how long to wait for it [600].",
)
@output("site.check", SiteFinding)
def check(out: Output, name: str | None, job: bool, partition: str | None, timeout: float) -> None:
    """Try a site: template, scheduler, partitions, launcher. Exit 4 if something is wrong.

    The scheduler is asked what it says to a small job in each partition; nothing is submitted.

    With --job a job of the site's own template goes to a node, looks around there and starts a
    rank by the site's launcher. Ctrl-C cancels it.

    \b
    Examples: hpcdet site check generic-slurm
              hpcdet site check delta --job --partition gpu
    """
    chosen = _resolved(settings().site(name))
    findings = [*site_findings.findings(chosen), *tried_submissions.findings(chosen)]
    if job and all(finding.level != "error" for finding in findings):
        findings += _by_job(chosen, partition, timeout)
    out.emit(of_site.explained(findings), FINDINGS, key="what")
    wrong = [finding for finding in findings if finding.level == "error"]
    if wrong:
        raise ConfigError(wrong[0].what, where=f"site {chosen.name}", hint=wrong[0].hint)


def _by_job(site: Site, partition: str | None, timeout: float) -> list[SiteFinding]:
    folded, root = fold_defaults(site), settings().root_at(site)
    with one_shot_job.folder(root) as place, telling("waiting for a node") as tell:
        found = node_checks.findings(folded, partition, place, timeout, JOB_WALLTIME_S, tell=tell)
        # between nodes there is nothing to look at where the job has one
        return [one for one in found if (one.where, one.level) != ("nodes", "skipped")]


for verb in (site_authoring.init, site_authoring.lint, site_authoring.print_schema):
    site_command.add_command(verb)
