"""``templates``: the templates of job scripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from hpcdet.cli.frame.output import Column, Output, output
from hpcdet.cli.frame.settings import settings
from hpcdet.cli.inputs import preview
from hpcdet.cli.inputs.load_request import config_argument, request, setting_options
from hpcdet.errors import NotFound, UsageError
from hpcdet.jobs.script.render import search_path
from hpcdet.site import Site
from hpcdet.site_files.load_site import folders

SUFFIX = ".j2"
_OTHERS = ("live", "report", "site")
"""Folders of templates that are no job scripts."""


@click.group("templates", short_help="Show, copy and render job script templates.")
def templates_command() -> None:
    """Templates of job scripts; a folder of yours is searched before those that hpcdet ships.

    \b
    Example: hpcdet templates copy slurm/worker.sbatch.j2
    """


@templates_command.command("ls")
@click.option("--site", "site_name", metavar="NAME", help="Templates that this site uses.")
@output("templates.ls")
def ls(out: Output, site_name: str | None) -> None:
    """List every template in the search path; those in force come first.

    \b
    Example: hpcdet templates ls
    """
    rows = list(_all(settings().site(site_name)))
    columns = (Column("NAME", "id"), Column("IN FORCE", "in_force"), Column("PATH", "path"))
    out.emit(rows, columns)


def _all(site: Site) -> Iterator[dict[str, Any]]:
    seen: set[str] = set()
    for folder in search_path(site):
        for path in sorted(folder.glob(f"*/*{SUFFIX}")):
            name = str(path.relative_to(folder))
            if path.parent.name not in _OTHERS:
                yield {"id": name, "in_force": name not in seen, "path": str(path)}
            seen.add(name)


def _find(name: str, site_name: str | None) -> Path:
    rows = list(_all(settings().site(site_name)))
    for row in rows:
        if row["id"] == name:
            return Path(row["path"])
    known = ", ".join(sorted({row["id"] for row in rows}))
    raise NotFound(f"no template {name}", hint=f"there are: {known}")


@templates_command.command("show")
@click.argument("name")
@click.option("--site", "site_name", metavar="NAME", help="The template that this site uses.")
def show(name: str, site_name: str | None) -> None:
    """Show the text of a template that is in force.

    \b
    Example: hpcdet templates show slurm/worker.sbatch.j2
    """
    click.echo(_find(name, site_name).read_text(), nl=False)


@templates_command.command("copy")
@click.argument("name")
@click.option("--user", is_flag=True, help="Into the user's folder, not the project's.")
@click.option("--site", "site_name", metavar="NAME", help="The template that this site uses.")
def copy(name: str, user: bool, site_name: str | None) -> None:
    """Copy a template to where a changed one is found first; prints the new file's name.

    \b
    Example: hpcdet templates copy slurm/worker.sbatch.j2
    """
    source = _find(name, site_name)
    scope = "user" if user else "project"
    target = next(f.path for f in folders("templates") if f.scope == scope) / name
    if target.exists():
        raise UsageError("the template exists already", where=str(target))
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(source.read_bytes())
    target.chmod(0o644)
    click.echo(str(target))


@templates_command.command("render")
@config_argument()
@setting_options()
def render(
    config_file: Path, model_dir: Path | None, sets: Sequence[str], site_name: str | None
) -> None:
    """Show the script that a submission of CONFIG would use.

    \b
    Example: hpcdet templates render random.yaml --site generic-slurm
    """
    click.echo(preview.script(request(config_file, model_dir, sets, site_name, ask=True)), nl=False)
