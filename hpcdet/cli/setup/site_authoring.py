"""Verbs for authors of site files: ``site init``, ``site lint``, ``site schema``."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

import click

from hpcdet.cli.frame.output import Column, Output, output
from hpcdet.cli.frame.settings import settings
from hpcdet.errors import ConfigError, HpcdetError, UsageError
from hpcdet.jobs import site_draft
from hpcdet.jobs.checks import idle_keys, site_lint
from hpcdet.schedulers import opening
from hpcdet.schedulers.common.survey import Surveys
from hpcdet.site import Site, shell_variables
from hpcdet.site_files import load_site
from hpcdet.store.fs import files

COLUMNS = (
    Column("SITE", "site", cut=False),
    Column("JOB", "job", cut=False),
    Column("TEMPLATE", "template"),
    Column("BASH", "bash", cut=False),
    Column("SHELLCHECK", "shellcheck", cut=False),
)
_FILE_MODE = 0o644
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@click.command("init")
@click.argument("name", required=False)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Where to write it [NAME.yaml among the user's site files].",
)
def init(name: str | None, out: Path | None) -> None:
    """Draft a site file from the facts of this host's cluster; print the file's name.

    NAME is the cluster's own name by default. A file that is there is never overwritten. --out -
    prints the text instead.

    \b
    Examples: hpcdet site init
              hpcdet site init delta --out /etc/hpcdet/sites/delta.yaml
    """
    here = settings().site()
    facts = opening.of(here).facts
    if not isinstance(facts, Surveys):
        hint = f"write a file that begins with: extends: {here.name}"
        raise ConfigError(f"{here.scheduler} cannot be surveyed", where="site init", hint=hint)
    survey = facts.survey()
    name = name or re.sub(r"[^A-Za-z0-9._-]+", "-", survey.name)
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no name of a site", hint="letters, digits, dots, dashes")
    user = next(folder.path for folder in load_site.folders() if folder.scope == "user")
    path = out or user / f"{name}{load_site.SUFFIX}"
    text = site_draft.draft(name, str(path), survey, files.now()[:10])
    with tempfile.TemporaryDirectory() as place:
        tried = Path(place) / f"{name}{load_site.SUFFIX}"
        tried.write_text(text)
        load_site.load(str(tried))
    if str(path) == "-":
        click.echo(text, nl=False)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if not files.write_once(path, text.encode(), _FILE_MODE):
        hint = "give another NAME or --out FILE, or remove it first"
        raise UsageError("there is a file of that name already", where=str(path), hint=hint)
    click.echo(str(path))
    asked = name if out is None else str(path)
    settings().note(f"next: complete it, then hpcdet site check {asked} --job")


@click.command("lint")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--all", "every", is_flag=True, help="Every site file in the search path.")
@output("site.lint", site_lint.LintResult)
def lint(out: Output, names: tuple[str, ...], every: bool) -> None:
    """Render every job script of sites, and read it with bash and ShellCheck. Exit 4 on findings.

    Without a NAME: the site that would be used here. No scheduler is asked anything.

    \b
    Examples: hpcdet site lint delta
              hpcdet site lint --all -o json
    """
    if every and names:
        raise UsageError("--all and names exclude each other", hint="leave one out")
    if every:
        sites, unread = _all()
    else:
        sites, unread = [settings().site(name) for name in names or (None,)], []
    results = [*unread, *(result for site in sites for result in site_lint.lint(site))]
    remarks = [
        f"site {site.name}: {text}"
        for site in sites
        for text in (*idle_keys.idle(site), *shell_variables.unset(site))
    ]
    out.emit(results, COLUMNS, warnings=[*site_lint.missing(), *remarks], key="site")
    wrong = [result for result in results if result.findings]
    if out.for_people:
        for result in wrong:
            for finding in result.findings:
                settings().note(f"{result.site}, {result.job or result.template}: {finding}")
    if wrong:
        first = wrong[0]
        raise ConfigError(
            f"{len(wrong)} of {len(results)} scripts have findings",
            where=f"site {first.site}",
            hint=first.findings[0],
        )


def _all() -> tuple[list[Site], list[site_lint.LintResult]]:
    """Return every site of the search path, of files of one name the nearest, and what is none."""
    sites: list[Site] = []
    unread: list[site_lint.LintResult] = []
    nearest = {file.name: file for file in reversed(load_site.names())}
    for name, file in sorted(nearest.items()):
        try:
            sites.append(load_site.load(name))
        except HpcdetError as error:
            unread.append(site_lint.unreadable(name, str(file.path), error))
    return sites, unread


@click.command("schema")
def print_schema() -> None:
    """JSON Schema of site files, for editors.

    \b
    Example: hpcdet site schema > site.schema.json
    """
    from hpcdet.site_files.site_schema import schema

    click.echo(json.dumps(schema(), indent=2))
