"""Real ranks on a Slurm without accounting, told to leave in the ways that it has of telling.

However they are told, the trial goes on by itself and ends with the bits of an undisturbed one.
"""

from __future__ import annotations

import dataclasses
import shutil
from typing import Any

import pytest

from hpcdet.store.folder.records import Verdict
from hpcdet.store.fs import journal
from tests.experiments import same_bits
from tests.slurm_runs import Lab, Run, config, urgent

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm-b")]

BATCHES = 300

_undisturbed: list[str] = []


def long(**changes: Any) -> dict[str, Any]:
    """A trial of one rank on each of two nodes that lasts as long as its pace says."""
    return config(searcher={"max_length": {"batches": BATCHES}}, **changes)


def undisturbed(lab: Lab) -> str:
    """Digest of the trial that nothing disturbs; one run serves all tests."""
    if not _undisturbed:
        run = lab.submit(long())
        run.wait()
        assert run.reasons() == ["completed"], run.story()
        _undisturbed.append(run.digest())
    return _undisturbed[0]


def notices(run: Run, attempt: int) -> list[str]:
    """The signals that rank 0 of an attempt heard."""
    lines = journal.read(run.paths.trial(1).attempt(attempt).journal)
    return [line["signal"] for line in lines if line["kind"] == "notice"]


def test_a_trial_longer_than_its_time_limit_goes_on_in_a_chain(lab_b: Lab) -> None:
    """Row 1, with a time limit of one minute, the shortest that Slurm knows."""
    wanted = undisturbed(lab_b)
    run = lab_b.submit(long(resources={"walltime_s": 60}), pace=1.0)
    run.until_attempts(3)
    run.faster()
    run.wait()
    reasons = run.reasons()  # a slow machine needs more of them
    assert len(reasons) >= 3 and reasons[-1] == "completed", run.story()
    assert set(reasons[:-1]) == {"walltime"}, run.story()
    same_bits(run.digest(), wanted, run.story())
    # the same task came back each time: queue time was paid once
    assert len(run.submissions()) == 1


@pytest.mark.parametrize(("user_signal", "heard"), [(False, "SIGTERM"), (True, "SIGUSR2")])
def test_ranks_preempted_with_grace_save_and_come_back(
    lab_b: Lab, user_signal: bool, heard: str
) -> None:
    """Rows 2 and 3: minutes of grace; ``send_user_signal`` sends USR2 where TERM would come."""
    if user_signal:
        options = dataclasses.replace(lab_b.cluster.options, send_user_signal=True)
        lab_b.cluster.reconfigure(options)
    wanted = undisturbed(lab_b)
    run = lab_b.submit(long(resources={"resource_pool": "patient"}), pace=0.5)
    run.until_attempts(1)
    with urgent(lab_b.cluster, run.claim().nodes):
        run.until_ended(1)
    run.faster()
    run.wait()
    assert run.reasons() == ["preempted", "completed"], run.story()
    assert notices(run, 1)[:1] == [heard]
    same_bits(run.digest(), wanted, run.story())


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun on this machine")
def test_ranks_of_mpirun_on_two_nodes_save_and_come_back(lab_b: Lab) -> None:
    """TERM reaches the daemons of mpirun on the nodes, which would answer by killing the ranks."""
    site = {
        # both nodes are this host, where the ranks of one must not take those of the other's memory
        "launcher": {"kind": "mpirun", "args": ["--allow-run-as-root", "--mca", "btl", "self,tcp"]}
    }
    values = config(
        searcher={"max_length": {"batches": 60}},
        resources={"slots_per_trial": 4, "slots_per_node": 2, "resource_pool": "patient"},
        distributed={"backend": "mpi"},
    )
    once = lab_b.submit(values, site=site)
    once.wait()
    assert once.reasons() == ["completed"], once.story()
    run = lab_b.submit(values, site=site, pace=0.2)
    run.until_batches(4)
    run.faster(2.5)  # they need more than the second that a daemon which ends gives its ranks
    with urgent(lab_b.cluster, run.claim().nodes):
        run.until_ended(1)
    run.faster()
    run.wait()
    assert run.reasons() == ["preempted", "completed"], run.story()
    verdict = Verdict.read(run.paths.trial(1).attempt(1).verdict)
    assert verdict is not None and verdict.cause == "signal", "they were not spared\n" + run.story()
    same_bits(run.digest(), once.digest(), run.story())
