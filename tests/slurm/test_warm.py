"""Ranks that are forked on several nodes of the private Slurm, in one long step."""

from __future__ import annotations

from typing import Any

import pytest

from tests.experiments import parent, rank_pids, same_bits, strike, until
from tests.slurm_runs import Lab, config

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]


def trials(**worker: Any) -> dict[str, Any]:
    """Two trials of four ranks on two nodes, one after the other."""
    return config(
        searcher={"name": "random", "max_trials": 2, "max_concurrent_trials": 1},
        resources={"slots_per_trial": 4, "slots_per_node": 2, "memory_per_slot": None},
        worker=worker,
    )


def test_bits_are_those_of_cold_steps_whatever_is_killed(lab: Lab) -> None:
    cold = lab.submit(trials(warm="off"))
    cold.wait()
    warm = lab.submit(trials(), pace=0.2)
    warm.until_batches(6)
    assert not warm.notes("cold"), warm.story()
    nurseries = {parent(pid) for pid in rank_pids(warm.paths)}
    assert len(rank_pids(warm.paths)) == 4 and len(nurseries) == 2
    strike(rank_pids(warm.paths)[-1:])
    warm.until_ended(1)
    warm.until_attempts(2)
    assert {parent(pid) for pid in rank_pids(warm.paths)} == nurseries
    warm.until_batches(12)
    warm.cluster.check("scancel", "--signal=USR2", warm.task())  # to each step
    warm.until_ended(2)
    warm.until_training(1)
    warm.faster()
    warm.until_ended(3)
    warm.faster(0.2)
    warm.until_batches(6, trial=2)
    again = {parent(pid) for pid in rank_pids(warm.paths)}
    assert len(again) == 2
    strike([min(again)])
    until(lambda: bool(warm.notes("cold")), warm.story)
    warm.faster()
    warm.wait()
    assert warm.reasons(1) == ["lost", "preempted", "completed"], warm.story()
    assert warm.reasons(2) == ["lost", "completed"], warm.story()
    for trial in (1, 2):
        same_bits(warm.digest(trial), cold.digest(trial), warm.story())
