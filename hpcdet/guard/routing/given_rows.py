"""The rows that a model is given, beside those that have sources."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._pytree import tree_leaves

from hpcdet.errors import UsageError
from hpcdet.policy.codes import PolicyRefused


def check_rows(model: torch.nn.Module, known: Callable[[], int | None]) -> None:
    """Have a model refuse rows that are not as many as have sources.

    Args:
        known: how many have, while a batch is under way.
    """

    def check(module: torch.nn.Module, given: Any, options: Any) -> None:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        rows = known()
        leaves = [one for one in tree_leaves((given, options)) if isinstance(one, torch.Tensor)]
        sizes = {len(one) for one in leaves if one.dim()}
        if rows is not None and sizes and rows not in sizes:
            raise PolicyRefused(
                "P12",
                f"{rows} rows have sources, and {type(module).__name__} is given {min(sizes)}",
                where="governance.batch",
                hint="name the source of each row that the model is given: "
                "context.governance.batch(sources=[...])",
            )

    model.register_forward_pre_hook(check, with_kwargs=True)


def row_places(indices: Any) -> NDArray[np.int64]:
    """The places of rows in a batch as code has given them, int64[rows] or int64[rows, n].

    Raises:
        UsageError: they are no whole numbers, such as a mask, or rows are made from different
            numbers of others.
    """
    given = indices.cpu() if isinstance(indices, torch.Tensor) else indices
    try:
        found = np.asarray(given)
    except ValueError:  # ragged
        found = np.empty(0, np.object_)
    if found.size == 0 and found.dtype != np.object_:  # an empty list has floats
        return found.astype(np.int64)
    if found.dtype.kind not in "iu" or found.ndim not in (1, 2):
        raise UsageError(
            f"indices are {found.ndim}-dimensional, of {found.dtype}, and not places of rows",
            where="context.rows",
            hint="give whole numbers, [rows] or [rows, as many for each]: of a mask "
            "mask.nonzero().flatten(); repeat a place where a row is made from fewer",
        )
    return found.astype(np.int64)
