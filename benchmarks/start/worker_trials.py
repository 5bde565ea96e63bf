"""Trials of one worker on this machine, one after the other, until the first step of each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

from benchmarks.start.models import ONE
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import journal
from tests import experiments


@contextlib.contextmanager
def ended(
    model: str, warm: str, trials: int, folder: Path, variables: Mapping[str, str], ranks: int = 1
) -> Iterator[ExperimentPaths]:
    """An experiment of trials of one batch that has ended; it goes with its folder.

    Args:
        model: the code of the class ``StartTrial``.
        warm: ``worker.warm``.
        variables: of ranks.
    """
    code = folder / "model"
    code.mkdir(parents=True)
    (code / "model_def.py").write_text(model)
    values = experiments.config(
        1,
        trials,
        ranks,
        entrypoint="model_def:StartTrial",
        searcher={"max_concurrent_trials": 1},
        worker={"warm": warm},
        environment={"environment_variables": {**variables, **ONE}},
    )
    with experiments.local_jobs(folder / "state"):
        paths = experiments.submit(values, folder / "EXP", experiments.local_site(), code)
        experiments.run_to_end(paths, timeout=60.0 * (trials + ranks + 1))
        yield paths


def walls(paths: ExperimentPaths) -> list[float]:
    """Seconds from each trial's claim to its first step; of the first from the worker's start."""
    [worker] = paths.root.glob("workers/*/journal.jsonl")
    notes = journal.read(worker)
    begun = {line["trial"]: line["t"] for line in notes if line["kind"] == "claimed"}
    begun[1] = next(line["t"] for line in notes if line["kind"] == "start")
    found = []
    for number, since in sorted(begun.items()):
        [attempt] = paths.trial(number).attempts()
        [step] = [one["t"] for one in journal.read(attempt.journal) if one["kind"] == "first_step"]
        wall = datetime.fromisoformat(step) - datetime.fromisoformat(since)
        found.append(wall.total_seconds())
    return found
