"""The rows that a checkpoint has counted beside the order of the data: checks 14 and 19."""

from __future__ import annotations

import numpy as np

from hpcdet.data.sample_order import CountedOrder
from hpcdet.guard.counting.exposure import Exposure
from hpcdet.guard.guard import Guard
from hpcdet.guard.resume.resume_verdicts import Check, Overrides, State, broken
from hpcdet.policy.compiled import Matrix


def same_rows(
    guard: Guard,
    inherited: Exposure,
    saved: Exposure,
    state: State,
    begun: int,
    records: int,
    order: CountedOrder | None,
    *,
    expected: Matrix,
    overrides: Overrides,
) -> list[Check]:
    """The rows that were counted are those that the order of the data gives (G114, G119).

    Args:
        inherited: what the parent was trained on, up to ``begun`` samples.
        saved: what the checkpoint has counted, at ``records`` samples.
        order: of the trial's data; None: its code names their rows.
        expected: E of ``saved`` by the policies that were in effect.

    Raises:
        GovernanceBroken: G114, G119.
    """
    checks: list[Check] = []
    if not np.array_equal(np.asarray(state["E"]), expected):
        checks.append(overrides.settle(14, broken("G114", "its exposure is not that of its rows")))
    again = None if order is None else guard.recount(order, begun, records)
    if again is None:
        detail = "the code names the rows of its batches: there is no order to count again"
        unknown = (Check(number, f"G{number + 100}", "unknown", detail) for number in (14, 19))
        return [*checks, *unknown]
    again.join(inherited)
    total = sum(saved.rows.values()) + saved.dropped
    if total != sum(again.rows.values()) + again.dropped:
        wrong = broken(
            "G119",
            f"its position is {records} samples, and it has counted {total}",
            hint="the checkpoint is not of this trial's data, or was changed",
        )
        detail = "rows up to another position cannot be compared"
        return [*checks, overrides.settle(19, wrong), Check(14, "G114", "unknown", detail)]
    if again.encode() != saved.encode():
        wrong = broken(
            "G114",
            "its counts of rows are not those that the order of the data gives: "
            f"{saved.encode()['rows']}, not {again.encode()['rows']}",
            hint="the sources of the data have changed since, or the checkpoint has",
        )
        return [*checks, overrides.settle(14, wrong), Check(19, "G119", "passed")]
    return [*checks, Check(14, "G114", "passed"), Check(19, "G119", "passed")]
