"""A TensorFlow loop of one's own in an experiment.

    with core.init() as context:
        tracked = tensorflow.Tracked(context, model=model, optimizer=optimizer, random=generator)
        step = tracked.restore()
        for images, labels in tensorflow.batches(context, (x, y), 64, step):
            ...

Values of variables are in hpcdet's checkpoints as arrays. TensorFlow's global random numbers have
no state that can be read: draw from a ``tf.random.Generator`` and track it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hpcdet import core
from hpcdet.errors import IntegrityError, UsageError
from hpcdet.integrations._ranks import one_only
from hpcdet.integrations._rates import rate


class Tracked:
    """Everything whose variables a checkpoint has, and the steps behind.

    Args:
        objects: modules, models, optimizers that are built, ``tf.random.Generator``, variables.

    Raises:
        ConfigError: there are several ranks.
        UsageError: an object has no variables.
    """

    def __init__(self, context: core.Context, **objects: Any) -> None:
        one_only(context, "a TensorFlow loop")
        self._context = context
        self._variables = {name: _variables(name, one) for name, one in objects.items()}
        self._rates = [rate(one) for one in objects.values()]

    def restore(self) -> int:
        """Put back the newest checkpoint; returns the steps behind it, 0 at the beginning.

        Where that is another trial's, from which this one begins, learning rates stay as they are.

        Raises:
            IntegrityError: it is of other variables.
        """
        state = self._context.checkpoint.latest()
        if state is None:
            return 0
        inherited = self._context.checkpoint.inherited
        for name, variables in self._variables.items():
            values = state["variables"].get(name, [])
            if [tuple(one.shape) for one in variables] != [value.shape for value in values]:
                raise IntegrityError(
                    "the checkpoint is of other variables",
                    where=name,
                    hint="build the model and the optimizer as they were when the trial began",
                )
            for one, value in zip(variables, values, strict=True):
                if not (inherited and any(one is own for own in self._rates)):
                    one.assign(value)
        return int(state["step"])

    def save(self, step: int) -> None:
        """Make a checkpoint after so many steps."""
        values = {
            name: [np.array(one.numpy()) for one in variables]
            for name, variables in self._variables.items()
        }
        self._context.checkpoint.save({"variables": values, "step": step}, step)


def batches(
    context: core.Context, arrays: Sequence[Any], batch: int, behind: int
) -> Iterator[tuple[Any, ...]]:
    """Batches of arrays without end, in the trial's order, behind so many.

    The last of an epoch is smaller.

    Args:
        arrays: of equal length; a batch has a tensor of each.
    """
    order = context.order(len(arrays[0]), batch)
    epoch, within = divmod(behind, order.epoch_batches)
    for one in order.slices(epoch * order.size + within * batch, 0, 1):
        yield tuple(tf.convert_to_tensor(array[one.indices]) for array in arrays)


def _variables(name: str, one: Any) -> list[Any]:
    if isinstance(one, tf.Variable):
        return [one]
    if isinstance(one, tf.random.Generator):
        return [one.state]
    found = list(getattr(one, "variables", ()))
    if not found:
        raise UsageError(
            f"a {type(one).__name__} has no variables",
            where=f"Tracked({name}=...)",
            hint="build it first: call the model once, optimizer.build(variables)",
        )
    return found
