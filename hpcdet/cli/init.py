"""``init``: a folder to start from."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import click

from hpcdet import shipped
from hpcdet.cli.settings import settings
from hpcdet.errors import UsageError


@click.command("init", short_help="Make a folder with an example config and model.")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=".")
@click.option("--minimal", is_flag=True, help="One trial in the fewest lines, nothing else.")
@click.option("--profile", metavar="SITE", help="Write this site into the config.")
@click.option("-n", "--dry-run", is_flag=True, help="Only say what would be made.")
def init_command(folder: Path, minimal: bool, profile: str | None, dry_run: bool) -> None:
    """Make FOLDER (default: this one) with a config and a model that run as they are.

    \b
    Example: hpcdet init digits
    """
    source = shipped.folder("templates") / "init" / ("minimal" if minimal else "")
    profile = profile or settings().profile
    chosen = _site_line(profile) if profile else ""
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
            if target.suffix == ".yaml":
                with target.open("a") as config:
                    config.write(chosen)
        click.echo(str(target))
    [first] = (name for name in names if name.endswith(".yaml"))
    settings().note(f"next: cd {folder} && hpcdet submit {first} --wait")


def _site_line(profile: str) -> str:
    """The line of a config that names a site, which must be there.

    Raises:
        NotFound, ConfigError: it is not, or its file is wrong.
    """
    from hpcdet import site
    from hpcdet.store import config

    site.load(profile)
    file = Path(profile).expanduser()
    path = os.sep in profile or file.suffix == ".yaml"  # found from any folder
    return config.dump({"site": str(file.absolute()) if path else profile}).decode()


def _target(name: str) -> str:
    """Packaging tools drop names that begin with a dot, so the shipped ones have none."""
    return name.replace("dot-", ".", 1) if name.startswith("dot-") else name
