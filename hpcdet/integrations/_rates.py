"""The learning rate among the variables of a Keras optimizer."""

from __future__ import annotations

from typing import Any


def rate(optimizer: Any) -> Any:
    """The variable of the learning rate, of all options the only one that is state; None without.

    A schedule is no variable: its rate follows from the count of steps. ``LossScaleOptimizer`` has
    a variable of its own that nobody reads; the rate is that of the optimizer inside.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return getattr(inner, "_learning_rate", None)
