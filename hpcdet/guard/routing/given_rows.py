"""The rows that a model is given, beside those that have sources."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

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
