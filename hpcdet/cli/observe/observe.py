"""``status`` and ``show``: the state of experiments."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import click

from hpcdet import units
from hpcdet.cli.frame import text_format
from hpcdet.cli.frame.ids import called, id_argument, ids_argument
from hpcdet.cli.frame.output import Column, Output, output
from hpcdet.cli.frame.settings import settings
from hpcdet.cli.observe import follow, trial_table
from hpcdet.errors import Unsuccessful
from hpcdet.read.catalog import Catalog
from hpcdet.read.experiment.gather import Memory
from hpcdet.read.lookup import find
from hpcdet.read.lookup.all_experiments import of_each
from hpcdet.read.lookup.escapes import escaped
from hpcdet.read.views import describe, views
from hpcdet.read.views.items import encode, typed
from hpcdet.read.views.views import ShowView, StatusView
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import TrialState

STATES = get_args(TrialState)


_NEWEST, _TRIALS = 10, 20
"""Experiments that ``status`` shows though they have ended; trials that it shows of each."""


@click.command("status", short_help="One screen: state, trials, best value, health.")
@ids_argument(required=False)
@click.option(
    "-w",
    "--watch",
    is_flag=False,
    flag_value="5",
    metavar="SEC",
    help="Again every SEC seconds (5) until all have ended.",
)
@click.option("--exit-status", is_flag=True, help="Exit 6 if one of them ended badly.")
@click.option("--all", "whole", is_flag=True, help="All trials, and without ID all experiments.")
@output("status", StatusView)
def status_command(
    out: Output, ids: Sequence[str], watch: str | None, exit_status: bool, whole: bool
) -> None:
    """Show the state of experiments, from their files alone: the scheduler is not asked.

    Tables show 20 trials, the best, running and failed ones first; without ID, those
    experiments that have not ended, and the newest 10. Other formats are whole.

    \b
    Examples: hpcdet status digits-7f3a
              hpcdet status @last -w
    """
    every: float | None = None
    if watch is not None:
        every, ids = follow.watched(watch, ids)
    short = out.for_people and not out.fields and not whole
    with contextlib.nullcontext() if every is None else follow.following(ids):
        memories: dict[ExperimentPaths, Memory] | None = None if every is None else {}
        items, warnings = _status(ids, memories, short and not exit_status)
        _print_status(out, items, [*warnings, *_drift(ids, items), *_said(items)], short)
        while every is not None and not all(item.state in follow.ENDED for item in items):
            follow.pause(every)
            items, warnings = _status(ids, memories, short and not exit_status)
            if settings().live and out.for_people:
                click.clear()
            _print_status(out, items, warnings, short)
    bad = [item.id for item in items if item.state in ("ERROR", "CANCELED")]
    if exit_status and bad:
        raise Unsuccessful("ended without success", where=", ".join(bad))


def _said(items: list[StatusView]) -> list[str]:
    """Return warnings: jobs that wait too long for a node, paused trials over their size limit."""
    waits = [
        f"{item.id} waits for the cluster since {wait.since}: {wait.reason}; "
        "the scheduler says which nodes are down and why"
        for item in items
        for wait in item.waits
        if wait.long and item.health == "queued"
    ]
    return waits + [
        f"{item.id}: checkpoints of paused trials hold {units.size(item.paused_bytes)}, more "
        f"than checkpoint_storage.max_paused_bytes ({units.size(item.max_paused_bytes)}); "
        f"hpcdet resume {called(ExperimentPaths(Path(item.path)))}, "
        "or cancel trials that are not to continue"
        for item in items
        if item.max_paused_bytes is not None and (item.paused_bytes or 0) > item.max_paused_bytes
    ]


def _headline(item: StatusView) -> str:
    name = called(ExperimentPaths(Path(item.path)))
    lines = (text_format.folded(line, "    ") for line in describe.headline(item, name))
    return escaped("\n".join(lines))


def _drift(ids: Sequence[str], items: list[StatusView]) -> list[str]:
    """Return warnings on code changed since a live experiment's snapshot, if asked for."""
    live = [item for item in items if ids and item.state not in follow.ENDED]
    if not live:
        return []
    from hpcdet.jobs.create import code_drift

    found = []
    for item in live:
        differs = code_drift.code_differs(ExperimentPaths(Path(item.path)))
        if differs:
            more = f" and {len(differs) - 3} more" if len(differs) > 3 else ""
            files = ", ".join(differs[:3]) + more
            found.append(f"{item.id}: the code has changed since its snapshot: {files}")
    return found


def _status(
    ids: Sequence[str], memories: dict[ExperimentPaths, Memory] | None, short: bool
) -> tuple[list[StatusView], list[str]]:
    """Return items and warnings.

    Args:
        memories: of former looks, to which those of this one are added; None: it is the only look.
        short: without ids, leave out what has ended but for the newest ``_NEWEST``.
    """
    root = settings().root

    def look(paths: ExperimentPaths) -> StatusView:
        if memories is None:
            return views.status(paths)
        return views.status(memories.setdefault(paths, Memory(paths)).look())

    if not ids:
        catalog = Catalog(root)
        shown = catalog.alive(_NEWEST) if short else catalog.experiments
        if old := len(catalog.experiments) - len(shown):
            settings().note(f"{old} older experiments have ended: hpcdet status --all")
        return of_each(shown, look)
    items = []
    for each in ids:
        found = find.reference(each, root)
        item = look(found.paths)
        if found.trial:
            item = replace(item, trials=[t for t in item.trials if t.trial == found.trial])
        items.append(item)
    return items, []


def _print_status(
    out: Output, items: list[StatusView], warnings: Sequence[str], short: bool
) -> None:
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
        click.echo(_headline(item))
        for line in item.purged:
            settings().warn(line)
        for line in describe.failures(item):
            settings().note(line)
        if item.trials:
            shown = trial_table.foremost(item, _TRIALS) if short else item.trials
            out.emit(shown, trial_table.trials(item))
            if len(shown) < len(item.trials):
                settings().note(f"{len(shown)} of {len(item.trials)} trials; all of them: --all")


ATTEMPTS = (
    Column("ATTEMPT", lambda row: f"{row.trial}.{row.attempt}"),
    Column("REASON", lambda row: row.reason or "running", cut=False),
    Column("FROM", "from_step", right=True),
    Column("STEPS", "steps", right=True),
    Column("START", text_format.time_of("start"), cut=False),
    Column("TOOK", lambda row: units.duration(row.duration_s), right=True),
    Column("JOB", "job", cut=False),
    Column("NODES", "nodes", wide=True),
    Column("ERROR", "error"),
)

JOBS = (
    Column("N", "number", right=True),
    Column("NAME", "name"),
    Column("JOB", "job", cut=False),
    Column("TASKS", "tasks", right=True),
    Column("AT ONCE", "throttle", right=True),
    Column("SUBMITTED", text_format.time_of("at"), cut=False),
    Column("ERROR", "error"),
)

CHANGES = (
    Column("CHANGED", "key"),
    Column("TO", lambda row: typed(row.value)),
    Column("FROM", lambda row: typed(row.was)),
    Column("BY", "origin"),
    Column("WHEN", text_format.time_of("at"), cut=False),
)

NOTES = (
    Column("WHEN", text_format.time_of("at"), cut=False),
    Column("BY", "user"),
    Column("NOTE", "text", fold=True),
)

ALLOCATIONS = (
    Column("WORKER", "worker", cut=False),
    Column("JOB", "job", cut=False),
    Column("SLOTS", "slots", wide=True, right=True),
    Column("START", text_format.time_of("start"), cut=False),
    Column("END", text_format.time_of("end"), wide=True, cut=False),
    Column("SLOT HOURS", "slot_hours", right=True, cut=False),
    Column("OVERHEAD", "overhead_slot_hours", right=True),
    Column("COUNTED", "counted_slot_hours", wide=True, right=True),
    Column("CHARGED", "charged_slot_hours", right=True),
)

TABLES = {
    "attempts": ATTEMPTS,
    "jobs": JOBS,
    "allocations": ALLOCATIONS,
    "changes": CHANGES,
    "notes": NOTES,
}
SECTIONS = ("status", *TABLES, "config", "fingerprints", "provenance", "files")


@click.command("show", short_help="Everything known of an experiment, trial or attempt.")
@id_argument()
@click.option(
    "--section",
    multiple=True,
    metavar="NAME",
    type=click.Choice(SECTIONS),
    help=f"Only this part: {', '.join(SECTIONS)}.",
)
@output("show", ShowView)
def show_command(out: Output, id: str, section: Sequence[str]) -> None:
    """Show everything known of an experiment, a trial (ID/3) or an attempt (ID/3.2).

    \b
    Example: hpcdet show digits-7f3a --section attempts
    """
    found = find.reference(id, settings().root)
    item = views.show(found.paths)
    if found.trial:
        attempts = [
            row
            for row in item.attempts
            if row.trial == found.trial and found.attempt in (0, row.attempt)
        ]
        names = {f"{row.trial}.{row.attempt}" for row in attempts}
        item = replace(
            item,
            trials=[row for row in item.trials if row.trial == found.trial],
            attempts=attempts,
            fingerprints=[row for row in item.fingerprints if names & {*row.attempts}],
            checkpoints=[row for row in item.checkpoints if row.trial == found.trial],
        )
    if not out.for_people or out.fields:
        out.emit([item], ())
        return
    chosen = section or SECTIONS
    if "status" in chosen:
        click.echo(_headline(item))
        for line in item.purged:
            settings().warn(line)
        out.emit(item.trials, trial_table.trials(item))
    for part, columns in TABLES.items():
        if part in chosen and (rows := getattr(item, part)):
            click.echo(f"\n{part.capitalize()}")
            out.emit(rows, columns)
    if "allocations" in chosen:
        _note_uncharged(found.paths, item)
    for part in ("config", "fingerprints", "provenance", "files"):
        if part in chosen and (value := encode(getattr(item, part))):
            click.echo(f"\n{part.capitalize()}\n{_yaml(value)}", nl=False)


def _note_uncharged(paths: ExperimentPaths, item: ShowView) -> None:
    """Say how the charges of the last workers are asked for, which outlive their experiment."""
    charged = [row.charged_slot_hours is not None for row in item.allocations]
    if item.state in follow.ENDED and any(charged) and not all(charged):
        settings().note(
            f"{charged.count(False)} of {len(charged)} allocations are counted, not charged; "
            f"ask accounting for them: hpcdet searcher run --once {called(paths)}"
        )


def _yaml(value: Any) -> str:
    import yaml

    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
