"""Suggestions made in a process of their own: a Gaussian process needs torch, deciders have none.

    python -m hpcdet.search.elsewhere < question > params

One process for each suggestion: it costs seconds, and the memory of torch only while it runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, field
from typing import Any

from hpcdet.errors import ConfigError, HpcdetError
from hpcdet.search.model_based import ModelBased
from hpcdet.search.sampling import Around, Observation, View
from hpcdet.space.space import Space

PATIENCE_S = 900.0


@dataclass(frozen=True)
class Elsewhere(Around):
    """``sampler`` of the space that ``hyperparameters`` say, asked in another process."""

    sampler: ModelBased
    hyperparameters: Mapping[str, Any]
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
            "observations": [astuple(o) for o in view.observations(self.sampler.most)],
            "open": view.open(),
        }
        try:
            done = subprocess.run(
                [sys.executable, "-m", __name__],
                input=json.dumps(question),
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
            )
        except subprocess.TimeoutExpired as error:
            raise HpcdetError(f"{self.name}: no suggestion in {PATIENCE_S:g} s") from error
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
            if "No module named" in last[0]:
                raise ConfigError(
                    f"the sampler {self.name!r} lacks a package: {last[0]}",
                    where="searcher.sampler",
                    hint="pip install 'hpcdet[search]' torch, where the searcher runs",
                )
            raise HpcdetError(f"{self.name}: {last[0]}")
        return json.loads(done.stdout)  # type: ignore[no-any-return]


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
    question = json.load(sys.stdin)
    fields = ("seed", "model", "startup", "random_fraction", "objectives", "population")
    space = Space(question["hyperparameters"])
    sampler = ModelBased(space, **{name: question[name] for name in fields})
    json.dump(sampler.suggest(_Asked(question), question["number"]), sys.stdout)


if __name__ == "__main__":
    main()
