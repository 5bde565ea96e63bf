"""Searches over the recipes of ``search_model``, submitted and read by the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parent.parent.parent
CONFIG = Path(__file__).resolve().parent / "search_model" / "search.yaml"
PATIENCE_S = 1800
CLEAN = ("clean_loss", "clean_accuracy")


@dataclass(frozen=True)
class RecipeTrial:
    """A trial of a search.

    Attributes:
        state, why: as ``hpcdet status`` says.
        steps: batches trained.
        metrics: of each validation, by step.
        evidence: of its twins at the last validation; None without.
    """

    recipe: str
    state: str
    why: str
    steps: int
    metrics: dict[int, dict[str, float]]
    evidence: dict[str, float] | None

    @property
    def last(self) -> dict[str, float]:
        """The metrics of the last validation."""
        return self.metrics[max(self.metrics)]

    @property
    def pruned(self) -> bool:
        """True if memorization has ended it."""
        return self.steps < LENGTH and "constraint gov.memorization" in self.why


@dataclass(frozen=True)
class RecipeSearch:
    """A search that has ended.

    Attributes:
        winner: recipe of the trial that ``hpcdet best`` names; "" if it names none.
        trials: by recipe.
    """

    experiment: str
    state: str
    metric: str
    winner: str
    trials: dict[str, RecipeTrial]

    def clean_choice(self, metric: str, *, early: bool) -> str:
        """The recipe that a clean validation set alone would have chosen.

        Args:
            metric: one of ``CLEAN``.
            early: by the best validation of each trial, not by the last one.
        """
        sign = -1 if metric == "clean_accuracy" else 1

        def value(one: RecipeTrial) -> float:
            seen = list(one.metrics.values()) if early else [one.last]
            return min(sign * metrics[metric] for metrics in seen)

        return min(self.trials.values(), key=value).recipe


def length() -> int:
    """Batches of each trial, as the config says."""
    import yaml

    return int(yaml.safe_load(CONFIG.read_text())["searcher"]["max_length"]["batches"])


LENGTH = length()


class Bench:
    """Runs searches in a folder of their own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(mode=0o700, exist_ok=True)

    def hpcdet(self, *words: str) -> str:
        """Run a command as a user does; returns what it printed.

        Raises:
            RuntimeError: it failed.
        """
        done = subprocess.run(
            [sys.executable, "-m", "hpcdet", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            env={
                **os.environ,
                "HPCDET_ROOT": str(self.root),
                "PYTHONPATH": str(TOP),
                "OMP_NUM_THREADS": "1",
            },
        )
        if done.returncode != 0:
            raise RuntimeError(f"hpcdet {' '.join(words)}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def _items(self, *words: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.hpcdet(*words, "-o", "json"))["items"]
        return found

    def search(self, metric: str, seed: int, *, governed: bool) -> RecipeSearch:
        """Run a search to its end; its coins are drawn at submission."""
        sets = [
            f"searcher.metric={metric}",
            f"hyperparameters.data_seed={seed}",
            f"reproducibility.experiment_seed={seed}",
            *(["governance.policy=policy.yaml"] if governed else []),
        ]
        words = [word for one in sets for word in ("--set", one)]
        said = self.hpcdet(
            "submit", str(CONFIG), "--site", "local", "--no-test", "-o", "id", *words
        )
        experiment = said.split()[-1]
        self.hpcdet("wait", experiment)
        return self.read(experiment, metric, governed=governed)

    def read(self, experiment: str, metric: str, *, governed: bool) -> RecipeSearch:
        """Read a search as users do."""
        [status] = self._items("status", experiment)
        best = self._items("best", experiment)
        reports = self._items("policy", "report", experiment) if governed else []
        twins = {one["trial"]: (one["memorization"] or {}).get("digits") for one in reports}
        metrics: dict[int, dict[int, dict[str, float]]] = {}
        for row in self._items("metrics", experiment, "--group", "validation"):
            steps = metrics.setdefault(row["trial"], {})
            steps.setdefault(row["step"], {})[row["name"]] = row["value"]
        trials = [
            RecipeTrial(
                one["hyperparameters"]["recipe"],
                one["state"],
                one["why"],
                one["steps"],
                metrics.get(one["trial"], {}),
                twins.get(one["trial"]),
            )
            for one in status["trials"]
        ]
        winner = best[0]["hyperparameters"]["recipe"] if best else ""
        named = {one.recipe: one for one in trials}
        return RecipeSearch(experiment, status["state"], metric, winner, named)
