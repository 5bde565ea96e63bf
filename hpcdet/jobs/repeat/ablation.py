"""From now to then: one factor after the other restored, and what each of them was worth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hpcdet.errors import UsageError
from hpcdet.jobs.repeat import repetition
from hpcdet.jobs.repeat.present import Present
from hpcdet.jobs.repeat.repetition import Repetition, Restored
from hpcdet.read.capsule import training_outcome
from hpcdet.read.capsule.factors import Factor, FactorView, compare
from hpcdet.read.capsule.recorded import Capsule
from hpcdet.read.capsule.training_outcome import AblationView
from hpcdet.store.folder.layout import ExperimentPaths

Run = Callable[[Repetition], ExperimentPaths]
"""Makes the experiment, and returns once it has ended well."""


@dataclass(frozen=True)
class Ablation:
    """The runs of an ablation.

    Attributes:
        rows: every factor, then and now.
    """

    capsule: Capsule
    now: Present
    restored: Restored
    rows: list[FactorView]

    @staticmethod
    def of(capsule: Capsule, now: Present, restored: Restored) -> Ablation:
        """Return it.

        Raises:
            UsageError: the run is a trial of a search, of which now has another one.
        """
        if capsule.config.searcher.name != "single" or now.loaded.config.searcher.name != "single":
            raise UsageError(
                "--ablate is for searcher.name: single",
                where=capsule.paths.id,
                hint="what the trial of a search is now depends on the others: --run repeats it",
            )
        return Ablation(capsule, now, restored, compare(capsule.run_facts, now.run_facts))

    @property
    def steps(self) -> list[FactorView]:
        """The factors of which something is restored, each by a run."""
        lost = repetition.unrestorable(self.restored)
        return [row for row in self.rows if set(row.names) - lost]

    def runs(self, run: Run) -> Iterator[AblationView]:
        """Yield the rows of the table, each once its run has ended."""
        then = self.capsule.outcome
        of = f"{self.capsule.paths.id}/{self.capsule.one.number}"
        yield training_outcome.row("then", of, then, then)
        yield self._row("now", run, then, [], [])
        back: list[Factor] = []
        for one in self.steps:
            back.append(one.factor)
            yield self._row(one.factor, run, then, back, one.names)

    def _row(
        self,
        name: Factor | str,
        run: Run,
        then: training_outcome.Outcome,
        back: list[Factor],
        names: list[str],
    ) -> AblationView:
        wanted = repetition.mixed(self.capsule, self.now, self.restored, back)
        paths = run(wanted)
        found = training_outcome.of_experiment(paths, then.metric)
        return training_outcome.row(name, paths.id, then, found, names, wanted.unrestored)  # type: ignore[arg-type]


def came_back(rows: list[AblationView]) -> bool:
    """True if the last run is no different from the first in any bit that was compared."""
    return rows[-1].difference == 0.0 and rows[-1].same is True
