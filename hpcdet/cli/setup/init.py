"""``init``: a folder with a config and a model to start from."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
import textwrap
from pathlib import Path

import click

from hpcdet import shipped
from hpcdet.cli.frame.settings import settings
from hpcdet.errors import UsageError
from hpcdet.schedulers.common.backend import Backend


@click.command("init", short_help="Make a folder with an example config and model.")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=".")
@click.option("--minimal", is_flag=True, help="One trial in the fewest lines, nothing else.")
@click.option("--profile", metavar="SITE", help="Write this site into the config.")
@click.option(
    "--from",
    "script",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="SCRIPT",
    help="Read a job script into a config instead.",
)
@click.option("-n", "--dry-run", is_flag=True, help="Only print what would be made.")
def init_command(
    folder: Path, minimal: bool, profile: str | None, script: Path | None, dry_run: bool
) -> None:
    """Create FOLDER (default: this one) with a config and a model that run as they are.

    With --from the config is what a job script asks for and runs; its module and setup lines
    become a site of the folder. What has no translation is listed, also in the config.

    \b
    Examples: hpcdet init digits
              hpcdet init . --from train.sbatch
    """
    if script is not None:
        if minimal:
            raise UsageError("--minimal is an example, --from is yours", hint="leave one out")
        _from_script(folder, script, profile or settings().profile, dry_run)
        return
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
    settings().note(f"next: cd {shlex.quote(str(folder))} && hpcdet submit {first} --wait")


def _from_script(folder: Path, script: Path, profile: str | None, dry_run: bool) -> None:
    """Write ``experiment.yaml`` and, for setup lines, a site of the folder.

    Raises:
        ConfigError: the script runs nothing that a rank could run, or it makes no valid config.
        UsageError: one of these files is there already.
    """
    from hpcdet.config import api as config
    from hpcdet.schedulers import opening
    from hpcdet.store.config.resolved_config import dump
    from hpcdet.store.fs import yaml12

    target = folder / "experiment.yaml"
    site = settings().site(profile)
    text = yaml12.text(script)
    reader = _reader(opening.of(site), text)
    found = reader.script.translate(text, script.stem)
    texts: dict[Path, str] = {}
    if found.setup:
        own = script.stem if script.stem != site.name else f"{script.stem}-setup"
        extends = reader.facts.generic if site.fallback else site.name
        texts[folder / ".hpcdet" / "sites" / f"{own}.yaml"] = (
            f"# setup lines of {script.name}\n"
            + dump({"extends": extends, "setup": found.setup}).decode()
        )
        found.config["site"] = own
    elif profile:
        found.config |= yaml12.parse(_site_line(profile), "--profile").values
    for path in (target, *texts):
        if path.exists():
            raise UsageError(f"there is a {path.name} already", where=str(path.parent))
    head = [f"# from {script.name}; searcher.metric is to be what the code reports"]
    head += ["# not translated:"] * bool(found.left) + [f"#   {line}" for line in found.left]
    texts[target] = "\n".join([*head, dump(found.config).decode()])
    with tempfile.TemporaryDirectory() as place:
        tried = Path(place) / target.name
        tried.write_text(texts[target])
        config.load(tried)
    for path, text in texts.items():
        click.echo(f"{path}\n{textwrap.indent(text, '  ')}" if dry_run else str(path))
        if not dry_run:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.write_text(text)
    for line in found.left:
        settings().warn(f"not translated: {line}")
    settings().note(f"next: cd {shlex.quote(str(folder))} && hpcdet submit {target.name} -n")


def _reader(here: Backend, text: str) -> Backend:
    """Return the backend whose directives a job script has; without any, that of this site."""
    from hpcdet.schedulers import opening

    known = [one for one in opening.every() if one.script.directive]
    found = [one for one in known if f"\n{one.script.directive}" in f"\n{text}"]
    return next(iter([*found, *([here] if here.script.directive else known)]))


def _site_line(profile: str) -> str:
    """Return the line of a config that names an existing site.

    Raises:
        NotFound, ConfigError: it is not, or its file is wrong.
    """
    from hpcdet.site_files import load_site
    from hpcdet.store.config import resolved_config as config

    load_site.load(profile)
    file = Path(profile).expanduser()
    path = os.sep in profile or file.suffix == ".yaml"  # found from any folder
    return config.dump({"site": str(file.absolute()) if path else profile}).decode()


def _target(name: str) -> str:
    """Return the target name of a shipped file; leading dots are absent there (packaging)."""
    return name.replace("dot-", ".", 1) if name.startswith("dot-") else name
