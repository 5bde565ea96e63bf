"""``init``: a folder to start from."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from hpcdet import shipped
from hpcdet.cli.settings import settings
from hpcdet.errors import UsageError


@click.command("init", short_help="Make a folder with an example config and model.")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=".")
@click.option("-n", "--dry-run", is_flag=True, help="Only say what would be made.")
def init_command(folder: Path, dry_run: bool) -> None:
    """Make FOLDER (default: this one) with a config and a model that run as they are.

    \b
    Example: hpcdet init digits
    """
    source = shipped.folder("templates") / "init"
    names = sorted(path.name for path in source.iterdir() if path.is_file())
    there = [name for name in names if (folder / _target(name)).exists()]
    if there:
        hint = "give the name of a new folder"
        raise UsageError(f"there is a {_target(there[0])} already", where=str(folder), hint=hint)
    for name in names:
        target = folder / _target(name)
        if not dry_run:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, target)
        click.echo(str(target))
    settings().note(f"next: cd {folder} && hpcdet submit random.yaml --wait")


def _target(name: str) -> str:
    """Packaging tools drop names that begin with a dot, so the shipped ones have none."""
    return name.replace("dot-", ".", 1) if name.startswith("dot-") else name
