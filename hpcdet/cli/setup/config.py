"""``config``: checks and explanations of experiment configs, and the origins of values."""

from __future__ import annotations

import difflib
import json
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from hpcdet.cli.frame.output import Output, output
from hpcdet.cli.frame.settings import settings
from hpcdet.cli.inputs import preview
from hpcdet.cli.inputs.load_request import config_argument, request, setting_options
from hpcdet.config import api as config
from hpcdet.errors import NotFound
from hpcdet.read.experiment import changes, gather
from hpcdet.read.lookup import find
from hpcdet.read.views.items import typed
from hpcdet.site_files.load_site import walk
from hpcdet.store.config import resolved_config
from hpcdet.store.fs import files, yaml12

_KEYS = "hpcdet config show --origin lists those it has"


@click.group("config", short_help="Show, validate and explain experiment configs.")
def config_command() -> None:
    """Experiment configs.

    \b
    Example: hpcdet config show random.yaml --origin
    """


@config_command.command("show")
@config_argument()
@setting_options()
@click.option("--origin", is_flag=True, help="Where each value comes from.")
@output("config.show")
def show(
    out: Output,
    config_file: Path,
    model_dir: Path | None,
    sets: Sequence[str],
    site_name: str | None,
    origin: bool,
) -> None:
    """Show a config with every default filled in, as an experiment would keep it.

    In place of CONFIG, the id of an experiment: its config with what was changed since.

    \b
    Examples: hpcdet config show random.yaml --set searcher.max_trials=8 --origin
              hpcdet config show digits-7f3a --origin
    """
    if not config_file.is_file() and (gathered := _experiment(str(config_file))):
        resolved = dict(changes.effective(gathered).raw)
        leaves = list(_changed(gathered, resolved))
        warnings: Sequence[str] = ()
    else:
        wanted = request(config_file, model_dir, sets, site_name)
        resolved, leaves = wanted.loaded.resolved(), preview.origins(wanted)
        warnings = wanted.loaded.warnings
    if out.for_people and not out.fields:
        for warning in warnings:
            settings().warn(warning)
        if origin:
            for leaf in leaves:
                click.echo(f"{leaf.key}: {typed(leaf.value)}    # {leaf.origin}")
        else:
            click.echo(resolved_config.dump(resolved).decode(), nl=False)
        return
    items: list[Any] = [*leaves] if origin else [resolved]
    out.emit(items, (), key="key" if origin else "name", warnings=warnings)


def _experiment(name: str) -> gather.Gathered | None:
    """Return the experiment of that id; None if there is none."""
    try:
        return gather.gather(find.experiment(name, settings().root))
    except NotFound:
        return None


def _changed(gathered: gather.Gathered, resolved: dict[str, Any]) -> Iterator[preview.KeyView]:
    """Yield every leaf of an experiment's config."""
    found = {change.key: change for change in changes.changes(gathered)}
    recorded = gathered.provenance.get("origins")
    known = recorded if isinstance(recorded, dict) else {}
    for key, value in walk(resolved):
        origin = str(known.get(key, "experiment.yaml"))
        if key in found:
            change = found[key]
            origin = f"{change.origin} by {change.user}, was {typed(change.was)}"
        yield preview.KeyView(key, value, origin)


@config_command.command("get")
@click.argument("config_file", type=click.Path(path_type=Path), metavar="CONFIG")
@click.argument("key")
@setting_options()
def get(config_file: Path, key: str, sets: Sequence[str], site_name: str | None) -> None:
    """Show the value of KEY with every default filled in; JSON, but text as it is.

    \b
    Example: hpcdet config get random.yaml searcher.max_trials
    """
    value: Any = request(config_file, None, sets, site_name).loaded.resolved()
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            raise NotFound(f"no such key: {key}", where=str(config_file), hint=_KEYS)
        value = value[part]
    click.echo(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


@config_command.command("set")
@click.argument("config_file", type=click.Path(path_type=Path), metavar="CONFIG")
@click.argument("key")
@click.argument("value")
@click.option("--site", "site_name", metavar="NAME", help="Site [$HPCDET_SITE, else detected].")
@click.option("-n", "--dry-run", is_flag=True, help="Only show what would change.")
@output("config.set")
def set_value(
    out: Output, config_file: Path, key: str, value: str, site_name: str | None, dry_run: bool
) -> None:
    """Change KEY in the file CONFIG to VALUE, which is YAML; all else in it stays as it is.

    A config that would not be valid afterwards is left as it was. Prints the difference.

    \b
    Example: hpcdet config set random.yaml searcher.max_trials 8
    """
    request(config_file, None, [f"{key}={value}"], site_name).warn()
    before = yaml12.text(config_file)
    after = config.assign(before, key, value, str(config_file))
    names = (str(config_file), str(config_file) + (" (not written)" if dry_run else ""))
    lines = (before.splitlines(), after.splitlines())
    difference = list(difflib.unified_diff(*lines, *names, lineterm=""))
    if not dry_run and difference:
        mode = stat.S_IMODE(config_file.stat().st_mode)
        files.replace(config_file.resolve(), after.encode(), mode)
    if out.for_people and not out.fields:
        click.echo("\n".join(difference) or f"{key} has this value already")
        return
    item = {"id": str(config_file), "key": key, "value": yaml12.scalar(value)}
    out.emit([{**item, "diff": difference, "dry_run": dry_run}], ())


@config_command.command("validate")
@config_argument()
@setting_options()
def validate(
    config_file: Path, model_dir: Path | None, sets: Sequence[str], site_name: str | None
) -> None:
    """Check a config and whether it can run at its site. Exit 4 if not.

    \b
    Example: hpcdet config validate random.yaml
    """
    for warning in request(config_file, model_dir, sets, site_name).warnings(submits=False):
        settings().warn(warning)
    settings().note(f"{config_file} is valid")


@config_command.command("explain")
@click.argument("key", required=False, default="")
def explain_key(key: str) -> None:
    """Show the meaning and default of a key; without KEY, the names of all keys.

    \b
    Example: hpcdet config explain searcher.max_trials
    """
    from hpcdet.config.check import problems
    from hpcdet.config.schema import explain

    click.echo(explain(key) if key else "\n".join(problems.all_keys()))


@config_command.command("schema")
def print_schema() -> None:
    """JSON Schema of experiment configs, for editors.

    \b
    Example: hpcdet config schema > hpcdet.schema.json
    """
    from hpcdet.config.schema import schema

    click.echo(json.dumps(schema(), indent=2))
