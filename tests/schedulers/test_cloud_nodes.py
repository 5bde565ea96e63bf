"""What Slurm says of nodes that do not exist yet, and of jobs that wait for them."""

from __future__ import annotations

import math

from hpcdet.schedulers.common.base import TaskState
from hpcdet.schedulers.slurm.answers import slurm_text


def test_a_job_whose_nodes_are_being_made_waits_with_its_reason() -> None:
    fields = {
        **dict.fromkeys(slurm_text.SQUEUE_FIELDS, ""),
        **{"ArrayJobID": "12", "JobArrayID": "12", "ArrayTaskID": "0", "State": "CONFIGURING"},
        **{"Reason": "None", "StartTime": "1", "NodeList": "n[1-2]"},
    }
    line = "".join(f"{fields[name]}|" for name in slurm_text.SQUEUE_FIELDS)
    [row] = slurm_text.squeue(line)
    assert (row.task.state, row.task.reason) == (TaskState.PENDING, "CONFIGURING")
    assert row.task.nodes == ("n1", "n2") and row.task.wait.kind == "other"


def test_a_partition_without_nodes_may_have_those_of_a_cloud() -> None:
    hidden, bounded, there = slurm_text.sinfo(
        "spot*|infinite|0|up|REQUEUE|1-infinite\n"
        "few|infinite|0|up|REQUEUE|1-4\n"
        "day|infinite|3|up|OFF|1-infinite\n"
    )
    assert (hidden.widest, bounded.widest, there.widest) == (math.inf, 4, 3)
