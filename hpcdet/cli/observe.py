"""``ls``, ``status`` and ``show``: how experiments stand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from hpcdet.cli import follow, words
from hpcdet.cli.ids import id_argument, ids_argument
from hpcdet.cli.output import Column, Output, output, text
from hpcdet.cli.settings import settings
from hpcdet.errors import HpcdetError, Unsuccessful, UsageError
from hpcdet.read import find, views
from hpcdet.store.layout import ExperimentPaths

Item = dict[str, Any]

STATES = ("PENDING", "RUNNING", "PAUSED", "STOPPING", "COMPLETED", "CANCELED", "ERROR")


@click.command("ls", short_help="List experiments.")
@click.option("--state", multiple=True, type=click.Choice(STATES, case_sensitive=False))
@click.option("--tag", multiple=True, help="Only with this label (repeat: with all of them).")
@click.option("--since", default="", metavar="AGE|TIME", help="Made since, as 7d, 12h or a date.")
@click.option("--limit", type=click.IntRange(min=1), help="Only the newest N.")
@output("ls")
def ls_command(
    out: Output, state: Sequence[str], tag: Sequence[str], since: str, limit: int | None
) -> None:
    """List experiments, oldest first.

    \b
    Example: hpcdet ls --state RUNNING --since 7d
    """
    oldest = moment(since) if since else ""
    rows, warnings = _readable(views.brief)
    chosen = [
        row
        for row in rows
        if (not state or row["state"] in state)
        and set(tag) <= set(row["labels"])
        and row["created"] >= oldest
    ]
    columns = (
        Column("ID", "id"),
        Column("STATE", "state", cut=False),
        Column("TRIALS", lambda row: f"{row['done']}/{row['trials']}", right=True),
        Column("CREATED", words.time_of("created"), cut=False),
        Column("NAME", "name"),
        Column("LABELS", "labels"),
        Column("PATH", "path", wide=True),
    )
    empty = f"no experiments in {settings().root}"
    out.emit(chosen[-limit:] if limit else chosen, columns, warnings=warnings, empty=empty)


def moment(since: str) -> str:
    """``7d``, ``12h``, ``30m``, ``45s`` ago, or a date or time, as ISO in UTC.

    Raises:
        UsageError: it is none of these.
    """
    unit = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}.get(since[-1:])
    try:
        if unit and since[:-1].replace(".", "", 1).isdigit():
            at = datetime.now(UTC) - timedelta(**{unit: float(since[:-1])})
        else:
            at = datetime.fromisoformat(since).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        hint = "write 7d, 12h, 30m, or 2026-11-21"
        raise UsageError(f"{since!r} is no time", hint=hint) from error
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


@click.command("status", short_help="One screen: state, trials, best value, health.")
@ids_argument(required=False)
@click.option(
    "-w",
    "--watch",
    is_flag=False,
    flag_value="5",
    type=click.FloatRange(min=1),
    metavar="SEC",
    help="Again every SEC seconds (5) until all have ended.",
)
@click.option("--exit-status", is_flag=True, help="Exit 6 if one of them ended badly.")
@output("status")
def status_command(out: Output, ids: Sequence[str], watch: float | None, exit_status: bool) -> None:
    """How experiments stand, from their files alone: the scheduler is not asked.

    \b
    Examples: hpcdet status digits-7f3a
              hpcdet status @last -w
    """
    items, warnings = _status(ids)
    _print_status(out, items, [*warnings, *_drift(ids, items)])
    if watch is not None:
        with follow.following():
            while not all(item["state"] in follow.ENDED for item in items):
                follow.pause(watch)
                items, warnings = _status(ids)
                if settings().live and out.for_people:
                    click.clear()
                _print_status(out, items, warnings)
    bad = [item["id"] for item in items if item["state"] in ("ERROR", "CANCELED")]
    if exit_status and bad:
        raise Unsuccessful("it ended, and not well", where=", ".join(bad))


def _drift(ids: Sequence[str], items: list[dict[str, Any]]) -> list[str]:
    """Code that was changed since a live experiment took its snapshot, if one is asked for."""
    live = [item for item in items if ids and item["state"] not in follow.ENDED]
    if not live:
        return []
    from hpcdet.jobs import drift

    found = []
    for item in live:
        differs = drift.code_differs(ExperimentPaths(Path(item["path"])))
        if differs:
            more = f" and {len(differs) - 3} more" if len(differs) > 3 else ""
            files = ", ".join(differs[:3]) + more
            found.append(f"{item['id']}: the code has changed since its snapshot: {files}")
    return found


def _readable(view: Callable[[ExperimentPaths], Item]) -> tuple[list[Item], list[str]]:
    """A view of all experiments, and a warning for each that cannot be read."""
    items: list[Item] = []
    warnings: list[str] = []
    for paths in find.experiments(settings().root):
        try:
            items.append(view(paths))
        except HpcdetError as error:
            warnings.append(f"{paths.id} is left out: {error.what}")
    return items, warnings


def _status(ids: Sequence[str]) -> tuple[list[Item], list[str]]:
    root = settings().root
    if not ids:
        return _readable(views.status)
    items = []
    for each in ids:
        found = find.reference(each, root)
        item = views.status(found.paths)
        if found.trial:
            item["trials"] = [t for t in item["trials"] if t["trial"] == found.trial]
        items.append(item)
    return items, []


TRIALS = (
    Column("TRIAL", "trial", right=True),
    Column("STATE", "state", cut=False),
    Column("STEPS", "steps", right=True),
    Column("BEST", "best", right=True),
    Column("AT", "best_step", right=True),
    Column("RESTARTS", "restarts", right=True),
    Column("HYPERPARAMETERS", "hyperparameters"),
    Column("SEED", "seed", wide=True, right=True),
    Column("CHECKPOINT", lambda row: (row["last_checkpoint"] or {}).get("name"), wide=True),
    Column("WHY", "why", wide=True),
)


def _print_status(out: Output, items: list[Item], warnings: Sequence[str]) -> None:
    if not out.for_people or out.fields:
        out.emit(items, (), warnings=warnings)
        return
    for warning in warnings:
        settings().warn(warning)
    if not items:
        settings().note(f"no experiments in {settings().root}")
    for number, item in enumerate(items):
        if number:
            click.echo()
        click.echo(headline(item))
        for trial in item["trials"]:
            if trial["state"] == "ERROR" and trial["why"]:
                settings().note(f"trial {trial['trial']}: {text(trial['why'])}")
        if item["trials"]:
            out.emit(item["trials"], TRIALS)


def headline(item: dict[str, Any]) -> str:
    """The lines above the table of trials: state, health, best value."""
    done = sum(trial["state"] in follow.ENDED for trial in item["trials"])
    lines = [f"{item['id']}  {item['state']}  {done}/{len(item['trials'])} trials ended"]
    if item["why"]:
        lines.append(f"  {text(item['why'])}")
    if item["state"] not in follow.ENDED:
        turn = item["last_turn_s"]
        age = "" if turn is None else f", last turn {words.duration(turn)} ago"
        why = f": {item['health_why']}" if item["health_why"] else ""
        lines.append(f"  health {item['health']}{age}{why}")
    if item["best"]:
        best = item["best"]
        lines.append(
            f"  best {item['metric']} {text(best['value'])}"
            f" (trial {best['trial']}, step {best['step']})"
        )
    return "\n".join(lines)


ATTEMPTS = (
    Column("ATTEMPT", lambda row: f"{row['trial']}.{row['attempt']}"),
    Column("REASON", lambda row: row["reason"] or "running", cut=False),
    Column("FROM", "from_step", right=True),
    Column("STEPS", "steps", right=True),
    Column("START", words.time_of("start"), cut=False),
    Column("TOOK", lambda row: words.duration(row["duration_s"]), right=True),
    Column("JOB", "job"),
    Column("NODES", "nodes", wide=True),
    Column("ERROR", "error"),
)

JOBS = (
    Column("N", "number", right=True),
    Column("NAME", "name"),
    Column("JOB", "job"),
    Column("TASKS", "tasks", right=True),
    Column("AT ONCE", "throttle", right=True),
    Column("SUBMITTED", words.time_of("at"), cut=False),
    Column("ERROR", "error"),
)

SECTIONS = ("status", "attempts", "jobs", "config", "provenance", "files")


@click.command("show", short_help="Everything known of an experiment, trial or attempt.")
@id_argument()
@click.option("--section", multiple=True, type=click.Choice(SECTIONS), help="Only this part.")
@output("show")
def show_command(out: Output, id: str, section: Sequence[str]) -> None:
    """Everything known of an experiment, a trial (ID/3) or an attempt (ID/3.2).

    \b
    Example: hpcdet show digits-7f3a --section attempts
    """
    found = find.reference(id, settings().root)
    item = views.show(found.paths)
    if found.trial:
        for part in ("trials", "attempts", "checkpoints"):
            item[part] = [row for row in item[part] if row["trial"] == found.trial]
    if found.attempt:
        item["attempts"] = [r for r in item["attempts"] if r["attempt"] == found.attempt]
    if not out.for_people or out.fields:
        out.emit([item], ())
        return
    chosen = section or SECTIONS
    if "status" in chosen:
        click.echo(headline(item))
        out.emit(item["trials"], TRIALS)
    for part, columns in (("attempts", ATTEMPTS), ("jobs", JOBS)):
        if part in chosen and item[part]:
            click.echo(f"\n{part.capitalize()}")
            out.emit(item[part], columns)
    for part in ("config", "provenance", "files"):
        if part in chosen and item[part]:
            click.echo(f"\n{part.capitalize()}\n{_yaml(item[part])}", nl=False)


def _yaml(value: Any) -> str:
    import yaml

    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
