"""``best``: the best trial or the front of several objectives, also for other verbs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from hpcdet.cli.frame.ids import ids_argument, references
from hpcdet.cli.frame.output import Column, Item, Output, output, text
from hpcdet.cli.frame.settings import settings
from hpcdet.read.views import views


@click.command("best", short_help="The best trial, or the front of several objectives.")
@ids_argument()
@output("best")
def best_command(out: Output, ids: Sequence[str]) -> None:
    """The best trial of experiments; with several objectives all that no other one beats in all.

    Only trials that keep the constraints are named. Trials are compared at the greatest length at
    which one of these has reported.

    \b
    Example: hpcdet best digits-7f3a -o json
    """
    items: list[Item] = []
    columns: tuple[Column, ...] = ()
    for reference in references(ids):
        status = views.status(reference.paths)
        rows = {row["trial"]: row for row in status["trials"]}
        found = status["front"] or ([status["best"]] if status["best"] else [])
        for one in found:
            trial = rows[one["trial"]]
            shared = ("id", "trial", "state", "hyperparameters", "last_checkpoint")
            alone = {status["metric"]: one.get("value")}
            items.append(
                {
                    **{key: trial[key] for key in shared},
                    "step": one["step"],
                    "objectives": one.get("objectives", alone),
                    "constraints": one.get("constraints", {}),
                }
            )
        columns = (*columns, *(one for one in _values(status) if one not in columns))
        if not found:
            settings().note(_none(status))
    shown = (
        Column("ID", "id", cut=False),
        Column("STATE", "state"),
        Column("STEP", "step", right=True),
        *columns,
        Column("HYPERPARAMETERS", "hyperparameters", fold=True),
    )
    out.emit(items, shown)


def lines(status: Item) -> list[str]:
    """Return the lines of a headline on the best trial and the front, or that there is none."""
    best, several = status["best"], len(status["objectives"]) > 1
    if best is None:
        return [f"  {_none(status)}"] if status["nearest"] else []
    at = f"trial {best['trial']}, step {best['step']}"
    label = "best feasible" if _constrained(status) else "best"
    said = [f"  {label} {status['metric']} {text(best['value'])} ({at})"]
    if several:
        front = [str(one["trial"]) for one in status["front"]]
        named = ", ".join(front[:20]) + (" …" if len(front) > 20 else "")
        said.append(f"  front of {', '.join(status['objectives'])}: trials {named}")
    return said


def columns(status: Item) -> tuple[Column, ...]:
    """Return the columns of the table of trials that depend on the search's goals."""
    if not _constrained(status) and len(status["objectives"]) < 2:
        return ()
    feasible = Column("FEASIBLE", lambda row: {True: "yes", False: "no"}.get(row["feasible"]))
    front = Column("FRONT", lambda row: "front" if row["on_front"] else None)
    return (
        *_values(status),
        *((feasible,) if _constrained(status) else ()),
        *((front,) if len(status["objectives"]) > 1 else ()),
    )


def _constrained(status: Item) -> bool:
    return any(trial.get("constraints") for trial in status["trials"])


def _values(status: Item) -> list[Column]:
    """Return a column for each objective and each constraint."""
    bounds: Item = next((t["constraints"] for t in status["trials"] if t.get("constraints")), {})
    found = [Column(n.upper(), _Value("objectives", n), right=True) for n in status["objectives"]]
    return found + [
        Column(name.upper(), _Value("constraints", name), right=True)
        for name in bounds
        if name not in status["objectives"]
    ]


@dataclass(frozen=True)
class _Value:
    """A look-up of a value inside a row."""

    part: str
    name: str

    def __call__(self, row: Item) -> Any:
        return row[self.part].get(self.name)


def _none(status: Item) -> str:
    """Return why there is no best trial."""
    nearest = status["nearest"]
    if nearest is None:
        return f"{status['id']}: no trial has a value of {status['metric']} yet"
    values = {**nearest["objectives"], **nearest["constraints"]}
    said = ", ".join(f"{name} {text(value)}" for name, value in values.items())
    return f"no trial is feasible; nearest: trial {nearest['trial']} ({said}), infeasible"
