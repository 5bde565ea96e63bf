"""Random blows against trials of two real ranks on one or two nodes of the private Slurm.

See ``tests.chaos``; here the scheduler itself strikes, too.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from tests import chaos
from tests import experiments as x
from tests.slurm_runs import Lab, Run, config, urgent

pytestmark = [pytest.mark.slurm, pytest.mark.chaos, pytest.mark.xdist_group("slurm-b")]

LANES = 2
NUMBER = chaos.BLOWS - chaos.BLOWS * 3 // 5


@dataclass
class Victim(chaos.Victim):
    """A trial on the private Slurm, and the run it belongs to."""

    run: Run | None = None


def requeue(victim: chaos.Victim) -> str:
    run = _run(victim)
    if run.cluster.call("scontrol", "requeue", run.task()).returncode:
        raise chaos.NotStruck  # it waits to start again
    return run.task()


def preempt(victim: chaos.Victim) -> str:
    run, attempt = _run(victim), victim.attempts()
    nodes = run.claim().nodes
    with urgent(run.cluster, nodes):
        x.until(lambda: victim.over() or run.reasons()[attempt - 1], run.story)
    return ",".join(nodes)


def _run(victim: chaos.Victim) -> Run:
    assert isinstance(victim, Victim) and victim.run is not None
    return victim.run


@pytest.mark.timeout(900 + 120 * NUMBER)
def test_random_blows_leave_the_bits_as_they_are(lab_b: Lab) -> None:
    chaos.write_model(lab_b.model)

    def submit(lane: int, draw: random.Random, pace: float = chaos.PACE_S) -> Victim:
        mode = draw.choice(["shared", "per_trial"])
        nodes = draw.choice([1, 2])  # two ranks on one node are forked from a nursery
        resources = {"nodes": nodes, "slots_per_node": 2 // nodes, "memory_per_slot": None}
        values = config(**chaos.CONFIG, worker={"mode": mode}, resources=resources)
        values["searcher"]["max_length"]["batches"] = chaos.BATCHES
        run = lab_b.submit(values, pace=pace)
        return Victim(run.paths, run.pace, draw, run=run)

    calm = submit(0, random.Random(), pace=0)
    calm.see_to_searcher()
    _run(calm).wait()
    wanted = x.final_digest(calm.paths, 1), x.metric_rows(calm.paths)
    blows = [one for one in chaos.COMMON if one not in chaos.ON_SMALL_DISKS]
    blows += [requeue, preempt]
    chaos.Campaign("slurm", submit, blows, NUMBER, per_trial=5, wanted=wanted).run(LANES)
