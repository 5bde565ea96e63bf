"""``eff``: resources requested and used, with suggestions for the next submission."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import click

from hpcdet import units
from hpcdet.cli.frame import text_format
from hpcdet.cli.frame.ids import ids_argument, references
from hpcdet.cli.frame.output import Column, Output, output
from hpcdet.cli.frame.settings import settings
from hpcdet.read.lookup import find
from hpcdet.read.lookup.all_experiments import of_each
from hpcdet.read.usage import efficiency
from hpcdet.read.usage.efficiency import EfficiencyView


def _of(used: str, asked: str, word: Callable[[Any], str]) -> Callable[[EfficiencyView], str]:
    """Format use of a request: ``10 % of 8``; the use alone if nothing was requested."""

    def text(item: EfficiencyView) -> str:
        amount, most = getattr(item, used), getattr(item, asked)
        if amount is None:
            return ""
        return f"{units.percent(amount / most)} of {word(most)}" if most else word(amount)

    return text


def _main_phases(item: EfficiencyView) -> str:
    shares = sorted(item.phases.items(), key=lambda pair: -pair[1])[:3]
    return ", ".join(f"{name} {units.percent(share)}" for name, share in shares if share >= 0.005)


def _seconds(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"


def _rate(item: EfficiencyView) -> str:
    return "" if item.samples_per_s is None else f"{item.samples_per_s:.4g}"


def _gpu(item: EfficiencyView) -> str:
    return units.percent(None if item.gpu_percent is None else item.gpu_percent / 100)


COLUMNS = (
    Column("TRIAL", "id", cut=False),
    Column("CORES", _of("cpu_cores", "cpus", "{:.3g}".format), right=True),
    Column("MEMORY", _of("memory_peak_bytes", "memory_bytes", units.size), right=True),
    Column("GPU", _gpu, right=True),
    Column("TIME", _of("longest_s", "walltime_s", units.duration), right=True),
    Column("STEP", lambda item: _seconds(item.step_s), right=True),
    Column("SAMPLES/S", _rate, wide=True, right=True),
    Column("USEFUL", lambda item: units.percent(item.useful), wide=True, right=True),
    Column("WHERE", _main_phases),
    Column("BEYOND", "beyond_batches", wide=True, right=True),
    Column("STATE", "state", wide=True),
    Column("SLOTS", "slots", wide=True, right=True),
)
WASTE = (
    Column("TRIAL", "id", cut=False),
    Column("HOURS", lambda item: f"{item.slot_hours:.3g}", right=True),
    Column("USEFUL", lambda item: units.percent(item.useful), right=True),
    Column("STARTING", lambda item: f"{item.waste.starting:.3g}", right=True),
    Column("LOST", lambda item: f"{item.waste.lost:.3g}", right=True),
    Column("FAILED", lambda item: f"{item.waste.failed:.3g}", right=True),
    Column("IDLE", lambda item: f"{item.waste.idle:.3g}", right=True),
    Column("WAITED", lambda item: f"{item.waste.waiting:.3g}", right=True),
)


@click.command("eff", short_help="Cores, memory and time: requested, used, and what to ask for.")
@ids_argument(required=False)
@click.option("--waste", is_flag=True, help="Slot hours that trained nothing, by their cause.")
@click.option("--suggest", is_flag=True, help="Only what to change.")
@output("eff", EfficiencyView)
def eff_command(out: Output, ids: Sequence[str], waste: bool, suggest: bool) -> None:
    """Show resources requested and used per slot, where time went, and what to change.

    \b
    Examples: hpcdet eff digits-7f3a
              hpcdet eff digits-7f3a --suggest
    """
    items, warnings = _items(ids)
    if not out.for_people or out.fields:
        out.emit(items, COLUMNS, warnings=warnings)
        return
    if not suggest:
        columns = WASTE if waste else COLUMNS
        out.emit(items, columns, warnings=warnings, empty="nothing has run yet")
    lines = list(dict.fromkeys(line for item in items for line in _lines(item)))
    if not suggest:
        lines = [*_beyond(items), *lines]
    for line in lines:
        click.echo(line)
    if suggest and not lines:
        settings().note("nothing to suggest")


def _items(ids: Sequence[str]) -> tuple[list[EfficiencyView], list[str]]:
    if ids:
        found = [efficiency.efficiency(one.paths, one.trial) for one in references(ids)]
        return [item for rows in found for item in rows], []
    all_rows, warnings = of_each(find.experiments(settings().root), efficiency.efficiency)
    return [item for rows in all_rows for item in rows], warnings


def _beyond(items: list[EfficiencyView]) -> list[str]:
    """Return for each experiment the total training of its trials beyond rungs."""
    found: dict[str, Counter[str]] = {}
    for item in items:
        whole = found.setdefault(item.id.partition("/")[0], Counter())
        for key in ("trained_batches", "beyond_batches", "beyond_s", "waited_s"):
            whole[key] += getattr(item, key)
    return [
        text_format.folded(
            f"{id}: {one['beyond_batches']} of {one['trained_batches']} batches were trained "
            f"beyond rungs while decisions travelled, in {units.duration(one['beyond_s'])}; "
            f"trials waited at rungs for {units.duration(one['waited_s'])}",
            "  ",
        )
        for id, one in found.items()
        if one["beyond_batches"] or one["waited_s"]
    ]


def _lines(item: EfficiencyView) -> list[str]:
    """Format suggestions as ``ID: why: key: value`` for people."""
    lines = []
    for one in item.suggestions:
        what = f"{one.key}: {one.value}" if one.key else one.value
        said = f"{item.id}: {one.why}{f'; try {what}' if what else ''}"
        lines.append(text_format.folded(said, "  "))
    return lines
