"""What a trial of this benchmark trains, wherever it is run, and when it did."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path


class Work:
    """Products of matrices on one core; a file says when they began and ended, and their use of it.

    Args:
        name: of the trial.
        steps: in a training; $WORK_STEPS if not given.
    """

    def __init__(self, name: object, steps: int | None = None) -> None:
        import torch

        torch.set_num_threads(1)
        self.steps = steps or int(os.environ["WORK_STEPS"])
        self.done = 0
        self._place = Path(os.environ["WORK_SAYS"]) / f"{name}.json"
        self._matrix = torch.eye(384) * 0.999
        self._state = torch.rand(384, 384)
        self._begin = self._used = 0.0

    def step(self) -> None:
        """Take a step, and say so at the first and the last one."""
        if self.done == 0:
            self._begin, self._used = time.time(), time.process_time()
        for _ in range(16):
            self._state = self._state @ self._matrix
        self.done += 1
        if self.done == self.steps:
            used = time.process_time() - self._used
            self._place.write_text(json.dumps([self._begin, time.time(), used]))

    def train(self) -> None:
        """Take all steps."""
        while self.done < self.steps:
            self.step()
