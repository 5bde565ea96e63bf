"""Seven probes of a live model and its loss: whether rows are what routing takes them for.

Routing by rows is exact where a row of the loss reaches parameters through its own row alone.
Nobody can read that from code, so it is tried on a small batch: before an attempt's first step,
and every now and then. Gradients, buffers and random numbers are afterwards as before.

What escapes is coupling that this batch does not show, such as a capacity that it does not exceed.
"""

from __future__ import annotations

from hpcdet.guard.probing.gradients import as_the_oracle, denied_stay, loss_is_apart
from hpcdet.guard.probing.lane_probe import lanes_reach_no_row, lanes_reach_no_trunk
from hpcdet.guard.probing.probe import Probe
from hpcdet.guard.probing.rows import rows_are_apart, rows_are_the_batch

ALL = (
    *(rows_are_apart, rows_are_the_batch, lanes_reach_no_row, lanes_reach_no_trunk),
    *(loss_is_apart, denied_stay, as_the_oracle),
)

OF_NAMED_ROWS = (
    *(rows_are_apart, rows_are_the_batch, lanes_reach_no_trunk),
    *(loss_is_apart, denied_stay),
)
"""Where code names the rows of some passes, which may be made from several sources each."""


def check(probe: Probe) -> None:
    """Run all probes.

    Raises:
        PolicyRefused: rows mix in the model (P07), are not the batch's (P12), or mix in the loss
            (P13), or a lane reaches others than its own (P11).
        GovernanceBroken: a source reaches a layer that it may not change (G123).
    """
    for one in ALL:
        one(probe)
