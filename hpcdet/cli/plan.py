"""``plan``: what a config would do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from hpcdet import units
from hpcdet.cli import words
from hpcdet.cli.loading import config_argument, request, setting_options
from hpcdet.cli.output import Output, output, text
from hpcdet.cli.settings import settings
from hpcdet.config.plan import plan
from hpcdet.errors import UsageError
from hpcdet.jobs import pace, room
from hpcdet.store.config import Resolved


@click.command("plan", short_help="Say what a config would do; nothing is made.")
@config_argument()
@setting_options()
@click.option(
    "--checkpoint-size",
    metavar="SIZE",
    help="Of one checkpoint, as 2G [as in the newest experiment of this name].",
)
@click.option(
    "--trial-time",
    metavar="TIME",
    help="Of one whole training, as 2h [by the newest experiment of this name, else walltime].",
)
@output("plan")
def plan_command(
    out: Output,
    config_file: Path,
    model_dir: Path | None,
    sets: Sequence[str],
    site_name: str | None,
    checkpoint_size: str | None,
    trial_time: str | None,
) -> None:
    """How many trials a config makes, how long they train, what that costs; nothing is made.

    Files and bytes are compared with what is left on the file system, and with the quota where
    the site file says how to ask for it.

    \b
    Example: hpcdet plan random.yaml --set searcher.max_trials=64
    """
    wanted = request(config_file, model_dir, sets, site_name)
    resolved, site = wanted.resolved, wanted.site
    size = _bytes(checkpoint_size) if checkpoint_size else room.former(wanted.root, resolved.name)
    by, unit_s = _pace(wanted.root, resolved, trial_time)
    item = {"id": resolved.name, **plan(resolved, size, unit_s), "site": site.name}
    item.pop("name")
    item["cost"]["by"] = by
    left, unknown = room.free(site, wanted.root)
    item["free"] = [asdict(one) for one in left]
    warnings = [*wanted.loaded.warnings, *unknown, *room.shortages(left, item["storage"])]
    if not out.for_people or out.fields:
        out.emit([item], (), warnings=warnings)
        return
    for warning in warnings:
        settings().warn(warning)
    for key, value in item.items():
        if key not in ("brackets", "storage", "free"):
            click.echo(f"{key.replace('_', ' '):<18}{text(value)}")
    for number, bracket in enumerate(item["brackets"], 1):
        click.echo(f"{f'bracket {number}':<18}{_bracket(bracket, item['unit'])}")
    _say_storage(item["storage"])
    for one in left:
        has = [f"{one.inodes} inodes"] if one.inodes is not None else []
        has += [words.size(one.bytes)] if one.bytes is not None else []
        click.echo(f"{'left, ' + one.by:<18}{', '.join(has) or 'no limit'} in {one.place}")
    settings().note("nothing was made; hpcdet submit makes it")


def _bracket(bracket: dict[str, Any], unit: str | None) -> str:
    """``7 trials; to 100 batches: 5, 300: 1, 900: 1``."""
    said = f"{bracket['trials']} trials"
    ends = list(zip(bracket["rungs"], bracket["ends"], strict=True))
    if not ends:
        return f"{said}; the code knows how long"
    (first, count), *others = ends
    steps = [f"to {first} {unit}: {count}", *(f"{rung}: {count}" for rung, count in others)]
    return f"{said}; {', '.join(steps)}"


def _say_storage(need: dict[str, Any]) -> None:
    trial = need["inodes_per_trial"]
    inodes = f"{need['inodes']} (a trial: {trial['running']} while it runs, {trial['ended']} then)"
    click.echo(f"{'inodes at most':<18}{inodes}")
    size = words.size(need["bytes"]) or "size not known; --checkpoint-size says it"
    each = f" ({words.size(need['checkpoint_bytes'])} each)" if need["bytes"] is not None else ""
    click.echo(f"{'checkpoints':<18}{need['checkpoints']}, {size}{each}")
    if need["max_paused_bytes"] is not None:
        paused = words.size(need["paused_bytes"]) or "size not known"
        click.echo(f"{'paused at most':<18}{paused} of {words.size(need['max_paused_bytes'])}")


def _pace(
    root: Path, resolved: Resolved, trial_time: str | None
) -> tuple[str | None, float | None]:
    """Where the estimate of time comes from, and seconds for one unit of length if known."""
    length = resolved.searcher.max_length
    if trial_time is not None:
        if length is None:
            what = "the code knows how long it trains"
            raise UsageError(what, where="--trial-time", hint="no searcher.max_length")
        return "--trial-time", _seconds(trial_time) / length.value
    known = pace.former(root, resolved)
    if known is not None:
        return known.source, known.unit_s
    return ("walltime" if resolved.resources.walltime_s is not None else None), None


def _seconds(time: str) -> int:
    try:
        return int(time) if time.strip().isdecimal() else units.seconds(time)
    except ValueError as error:
        raise UsageError(str(error), where="--trial-time") from error


def _bytes(size: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", size.strip(), re.IGNORECASE)
    if match is None:
        raise UsageError(f"{size!r} is no size", where="--checkpoint-size", hint="write 2G")
    return int(float(match[1]) * 1024 ** (" KMGT".index(match[2].upper() or " ")))
