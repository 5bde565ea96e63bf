"""Folders of checkpoints of trials under a policy that are not what their ledgers say."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hpcdet.errors import IntegrityError, NotFound
from hpcdet.read.governed.attested_trials import AttestedTrial, GovernedExperiment
from hpcdet.read.lookup import find


def refusals(folders: Iterable[str], root: Path) -> dict[str, IntegrityError]:
    """Return why checkpoints are not what was written, by their folder; the others are left out.

    Args:
        folders: of checkpoints; those of no trial of an experiment are not compared.
        root: of experiments.
    """
    experiments: dict[Path, GovernedExperiment] = {}
    trials: dict[Path, AttestedTrial] = {}
    found: dict[str, IntegrityError] = {}
    for folder in folders:
        try:
            of = find.reference(folder, root)
            if not of.trial:
                continue
            paths, trial = of.paths, of.paths.trial(of.trial)
            if paths.root not in experiments:
                experiments[paths.root] = GovernedExperiment(paths)
            if trial.root not in trials:
                trials[trial.root] = AttestedTrial(experiments[paths.root], trial)
            trials[trial.root].check(Path(folder))
        except NotFound:
            continue
        except IntegrityError as error:
            found[folder] = error
    return found
