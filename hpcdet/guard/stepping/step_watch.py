"""Steps of optimizers that nothing accounts for: refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook


class StepWatch:
    """Sees each step of any torch optimizer of this process, other frameworks' included.

    Args:
        refuse: called before a step that nothing accounts for; raises what is wrong with it.
        accounted: told of an optimizer that steps; whether that is accounted for.
    """

    def __init__(
        self, refuse: Callable[[], None], accounted: Callable[[torch.optim.Optimizer], bool]
    ) -> None:
        self._refuse, self._accounted = refuse, accounted
        self._handle = register_optimizer_step_pre_hook(self._before)

    def _before(self, optimizer: torch.optim.Optimizer, _args: Any, _options: Any) -> None:
        if not self._accounted(optimizer):
            self._refuse()

    def close(self) -> None:
        """Look no more."""
        self._handle.remove()
