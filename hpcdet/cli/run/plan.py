"""``plan``: the trials, lengths and cost of a config."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from hpcdet import units
from hpcdet.cli.frame import text_format
from hpcdet.cli.frame.output import Output, output
from hpcdet.cli.frame.settings import settings
from hpcdet.cli.frame.sizes import Size
from hpcdet.cli.inputs.load_request import config_argument, request, setting_options
from hpcdet.cli.run import plan_output
from hpcdet.config.check.plan import plan
from hpcdet.errors import UsageError
from hpcdet.jobs.checks import decisions, queue_limits, queue_waits, quota, throughput
from hpcdet.jobs.script import succession
from hpcdet.site import Site
from hpcdet.store.config.resolved_config import Resolved


@click.command("plan", short_help="Say what a config would do; nothing is made.")
@config_argument()
@setting_options()
@click.option(
    "--checkpoint-size",
    type=Size(),
    metavar="SIZE",
    help="Of one checkpoint, as 2G [as in the newest experiment of this name].",
)
@click.option(
    "--trial-time",
    metavar="TIME",
    help="Of one whole training, as 2h [by the newest experiment of this name, else walltime].",
)
@click.option(
    "--queue-wait",
    metavar="TIME",
    help="Of one job, as 30m [as jobs like these have waited in this partition].",
)
@click.option(
    "--decision-time",
    metavar="TIME",
    help="From a report until the trial is answered [as in the newest experiment of this name].",
)
@output("plan")
def plan_command(
    out: Output,
    config_file: Path,
    model_dir: Path | None,
    sets: Sequence[str],
    site_name: str | None,
    checkpoint_size: int | None,
    trial_time: str | None,
    queue_wait: str | None,
    decision_time: str | None,
) -> None:
    """Show the trials of a config, their lengths and their cost; nothing is created.

    Files and bytes are compared with what is left on the file system, and with the quota where
    the site file says how to ask for it.

    \b
    Example: hpcdet plan random.yaml --trial-time 2h --queue-wait 30m
    """
    wanted = request(config_file, model_dir, sets, site_name, ask=True)
    resolved, site = wanted.resolved, wanted.site
    size = checkpoint_size or quota.former(wanted.root, resolved.name)
    by, unit_s = _pace(wanted.root, resolved, trial_time)
    waits_by, queue_s = _queue(wanted.root, resolved, site, queue_wait)
    item = {
        "id": resolved.name,
        **plan(
            resolved, size, unit_s, queue_s, wanted.begun, queue_limits.most_jobs(resolved, site)
        ),
        "site": site.name,
        "succession": succession.way(site),
    }
    item.pop("name")
    cost = item["cost"]
    cost["by"], cost["queue_by"] = by, waits_by
    cost["ends_at"] = None if cost["end_s"] is None else _in(cost["end_s"])
    taken = _decisions(wanted.root, resolved, site, decision_time)
    item["beyond"] = decisions.estimate(resolved, taken, unit_s, by)
    past = wanted.history
    begin = wanted.origin
    item["begin_from"] = str(begin.folder) if begin is not None else None
    item["warm_start"] = [str(source) for source in past.sources] if past else []
    left, unknown = quota.free(site, wanted.root)
    item["free"] = [asdict(one) for one in left]
    warnings = [*wanted.loaded.warnings, *queue_limits.waiting(resolved, site)]
    warnings += [*unknown, *quota.shortages(left, item["storage"])]
    if too_fast := decisions.warning(item["beyond"], item["unit"]):
        warnings.append(too_fast)
    if not out.for_people or out.fields:
        out.emit([item], (), warnings=warnings)
        return
    for warning in warnings:
        settings().warn(warning)
    click.echo(text_format.facts(plan_output.facts(item)))
    settings().note("nothing was made; hpcdet submit makes it")


def _pace(
    root: Path, resolved: Resolved, trial_time: str | None
) -> tuple[str | None, float | None]:
    """Return the source of the estimate of time, and the seconds per unit of length if known."""
    length = resolved.searcher.max_length
    if trial_time is not None:
        if length is None:
            what = "the length of training is in the code"
            raise UsageError(what, where="--trial-time", hint="no searcher.max_length")
        return "--trial-time", _seconds(trial_time) / length.value
    known = throughput.former(root, resolved)
    if known is not None:
        return known.source, known.unit_s
    return ("walltime" if resolved.resources.walltime_s is not None else None), None


def _queue(
    root: Path, resolved: Resolved, site: Site, queue_wait: str | None
) -> tuple[str | None, float | None]:
    """Return the source of the estimate of the wait, and the seconds a job waits if known."""
    if queue_wait is not None:
        return "--queue-wait", _seconds(queue_wait, "--queue-wait")
    if site.scheduler == "local":
        return "no queue", 0.0
    known = queue_waits.former(root, resolved)
    return (known.source, round(known.typical_s, 1)) if known is not None else (None, None)


def _decisions(
    root: Path, resolved: Resolved, site: Site, decision_time: str | None
) -> decisions.Decisions:
    if decision_time is not None:
        seconds = _seconds(decision_time, "--decision-time")
        return decisions.Decisions(seconds, "--decision-time")
    return decisions.former(root, resolved) or decisions.assumed(site)


def _in(seconds: float) -> str:
    """Return the time ``seconds`` from now, ISO 8601 in UTC."""
    at = datetime.now(UTC) + timedelta(seconds=seconds)
    return at.isoformat(timespec="seconds").replace("+00:00", "Z")


def _seconds(time: str, where: str = "--trial-time") -> int:
    try:
        return int(time) if time.strip().isdecimal() else units.seconds(time)
    except ValueError as error:
        raise UsageError(str(error), where=where) from error
