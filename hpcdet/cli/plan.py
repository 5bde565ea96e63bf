"""``plan``: what a config would do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from hpcdet.cli.loading import config_argument, request, setting_options
from hpcdet.cli.output import Output, output, text
from hpcdet.cli.settings import settings
from hpcdet.config.plan import plan


@click.command("plan", short_help="Say what a config would do; nothing is made.")
@config_argument()
@setting_options()
@output("plan")
def plan_command(
    out: Output,
    config_file: Path,
    model_dir: Path | None,
    sets: Sequence[str],
    site_name: str | None,
) -> None:
    """How many trials a config makes, how long they train, what that costs; nothing is made.

    \b
    Example: hpcdet plan random.yaml --set searcher.max_trials=64
    """
    wanted = request(config_file, model_dir, sets, site_name)
    item = {"id": wanted.resolved.name, **plan(wanted.resolved), "site": wanted.site.name}
    item.pop("name")
    if not out.for_people or out.fields:
        out.emit([item], (), warnings=wanted.loaded.warnings)
        return
    wanted.warn()
    for key, value in item.items():
        if key == "brackets":
            continue
        click.echo(f"{key.replace('_', ' '):<18}{text(value)}")
    for number, bracket in enumerate(item["brackets"], 1):
        click.echo(f"bracket {number}: {text(bracket)}")
    settings().note("nothing was made; hpcdet submit makes it")
