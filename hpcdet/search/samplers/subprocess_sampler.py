"""Suggestions made in a process of their own: a Gaussian process needs torch, deciders have none.

    python -m hpcdet.search.samplers.subprocess_sampler < question > params

One process for each suggestion: it costs seconds, and the memory of torch only while it runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcdet.errors import ConfigError, HpcdetError
from hpcdet.search.api.sampling import Around, Observation, View
from hpcdet.search.samplers.optuna_samplers import ModelBased
from hpcdet.space.space import Space

PATIENCE_S = 900.0
STEP_S = 1.0


def still() -> None:
    """Do nothing while waiting: the default callback."""


@dataclass(frozen=True)
class Elsewhere(Around):
    """``sampler`` of the space that ``hyperparameters`` say, asked in another process.

    ``beat``: called every second meanwhile.
    """

    sampler: ModelBased
    hyperparameters: Mapping[str, Any]
    beat: Callable[[], object] = still
    learns: bool = field(default=True, init=False)

    def suggest(self, view: View, number: int) -> dict[str, Any]:
        """Raises as ``ModelBased.suggest``; HpcdetError if the process fails."""
        if not self.sampler.has_learned(view, number):
            return self.sampler.suggest(view, number)
        question = {
            "hyperparameters": self.hyperparameters,
            "seed": self.sampler.seed,
            "model": self.sampler.model,
            "startup": self.sampler.startup,
            "random_fraction": self.sampler.random_fraction,
            "objectives": self.sampler.objectives,
            "population": self.sampler.population,
            "number": number,
            "params": list(view.params().items()),
            "observations": list(view.observations(self.sampler.most)),
            "open": view.open(),
        }
        code, answer, errors = self._ask(json.dumps(question))
        if code:
            last = errors.strip().splitlines()[-1:] or [f"exit code {code}"]
            if "No module named" in last[0]:
                raise ConfigError(
                    f"the sampler {self.name!r} lacks a package: {last[0]}",
                    where="searcher.sampler",
                    hint="pip install 'hpcdet[search]' torch, where the searcher runs",
                )
            raise HpcdetError(f"{self.name}: {last[0]}")
        return json.loads(answer)  # type: ignore[no-any-return]

    def _ask(self, question: str) -> tuple[int, str, str]:
        """Exit code, output and errors of the process. Raises HpcdetError if it hangs."""
        process = subprocess.Popen(
            [sys.executable, "-Pm", __name__],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        until = time.monotonic() + PATIENCE_S
        unsaid: str | None = question
        with process:
            try:
                while time.monotonic() < until:
                    try:
                        answer, errors = process.communicate(unsaid, STEP_S)
                    except subprocess.TimeoutExpired:
                        unsaid = None  # it goes on being written
                        self.beat()
                    else:
                        return process.returncode, answer, errors
            finally:
                process.kill()  # which does nothing to one that has ended
        raise HpcdetError(f"{self.name}: no suggestion in {PATIENCE_S:g} s")


@dataclass(frozen=True)
class _Asked:
    """The view as the question tells it."""

    question: Mapping[str, Any]

    def params(self) -> Mapping[int, Mapping[str, Any]]:
        return dict(self.question["params"])

    def observations(self, most: int | None = None) -> Iterator[Observation]:
        for trial, length, loss, losses, excess in self.question["observations"]:
            yield Observation(trial, length, loss, tuple(losses), tuple(excess))

    def open(self) -> list[int]:
        return list(self.question["open"])


def main() -> None:
    """Answer one question from standard input: the parameters that a sampler suggests."""
    question = json.load(sys.stdin)
    fields = ("seed", "model", "startup", "random_fraction", "objectives", "population")
    space = Space(question["hyperparameters"])
    sampler = ModelBased(space, **{name: question[name] for name in fields})
    json.dump(sampler.suggest(_Asked(question), question["number"]), sys.stdout)


if __name__ == "__main__":
    main()
