"""What PBS's commands print, and what it means: outputs of a real OpenPBS 23.06 (user alice)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcdet.schedulers.common.base import Job, Task, TaskState
from hpcdet.schedulers.pbs import pbs_states
from hpcdet.schedulers.pbs_family import job_hosts, pbs_ids, pbs_text, pbs_waits
from hpcdet.schedulers.pbs_family.pbs_text import PbsRow
from tests.schedulers.pbs_fakes import (
    printed,
    recorded,
)

PENDING, RUNNING = TaskState.PENDING, TaskState.RUNNING


def shown(label: str) -> dict[str, PbsRow]:
    """The rows that a real server showed, by id."""
    rows = pbs_text.jobs(json.dumps({"Jobs": json.loads(recorded("rows.json"))[label]}))
    assert rows is not None
    return {row.id: row for row in rows}


def task(label: str, user: str = "alice") -> Task:
    [row] = shown(label).values()
    return pbs_states.task(row, user)


# -- what the commands print --------------------------------------------------------------


def test_json_and_text_of_a_job_say_the_same() -> None:
    [one] = pbs_text.jobs(recorded("running.json")) or []
    assert [one] == pbs_text.jobs_of_text(recorded("running.txt"))
    assert (one.id, one.state, one.run_count, one.hosts) == ("144.vm", "R", 1, ("pb1", "pb2"))
    assert (one.walltime_s, one.submitted) == (600, 1795240929)
    assert one.comment.endswith("+(pb2:ncpus=2:mem=204800kb)")  # a line that was broken


@pytest.mark.parametrize("text", ["", "{", '{"Jobs": {"1.vm": {"x": 005}}}', "[]", '{"Jobs": []}'])
def test_what_is_no_whole_json_is_not_believed(text: str) -> None:
    assert pbs_text.jobs(text) is None


def test_values_of_a_variable_list_do_not_disturb() -> None:
    odd = {"id": "7.vm", "job_state": "Q", "Variable_List": {"A": 7, "B": True, "C": 'x\\"y\nz'}}
    [row] = pbs_text.jobs(printed(odd)) or []
    assert (row.id, row.tag) == ("7.vm", "")
    tagged = {"id": "7.vm", "job_state": "Q", "Variable_List": {"HPCDET_TAG": "hpcdet:e:1-ab"}}
    assert [row.tag for row in pbs_text.jobs(printed(tagged)) or []] == ["hpcdet:e:1-ab"]
    text = "Job Id: 7.vm\n    job_state = Q\n    Variable_List = A=1,\n\tHPCDET_TAG=hpcdet:e:1-ab\n"
    assert [row.tag for row in pbs_text.jobs_of_text(text)] == ["hpcdet:e:1-ab"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("01:30:00", 5400), ("30:05", 1805), ("90", 90), ("", None), ("none", None)],
)
def test_durations(text: str, seconds: float | None) -> None:
    assert pbs_text.seconds(text) == seconds


def test_a_node_file_has_a_line_for_each_process(tmp_path: Path) -> None:
    file = tmp_path / "nodes"
    file.write_text("pb1\npb1\npb2\npb1\n")
    assert job_hosts.listed({"PBS_NODEFILE": str(file)}) == {"pb1": 3, "pb2": 1}
    assert job_hosts.listed({}) == {}


def test_ids_of_jobs_arrays_and_subjobs() -> None:
    assert pbs_ids.task_id("12.vm", 0) == "12.vm"
    assert pbs_ids.task_id("12[].vm", 3) == "12[3].vm"
    assert pbs_ids.job_and_index("12[3].vm") == ("12[].vm", 3)
    assert pbs_ids.job_and_index("12[].vm") == ("12[].vm", 0)
    assert pbs_ids.job_and_index("12.vm.x.org") == ("12.vm.x.org", 0)
    assert [pbs_ids.parse(text) for text in ("12.vm\n", "12[].vm", "12", "x", "")] == [
        "12.vm",
        "12[].vm",
        None,
        None,
        None,
    ]
    assert pbs_ids.key("12.vm") == pbs_ids.key("12.vm.x.org") != pbs_ids.key("12[].vm")
    assert pbs_ids.task_range("12[].vm", 3, 5) == "12[3-5].vm"


# -- states and ends ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "user", "state", "code"),
    [
        ("exit-0", "alice", TaskState.COMPLETED, 0),
        ("exit-3", "alice", TaskState.FAILED, 3),
        ("walltime", "alice", TaskState.TIMEOUT, None),  # although it exited with 0
        ("deleted-script", "alice", TaskState.CANCELED, -15),
        ("deleted-script", "bob", TaskState.PREEMPTED, -15),
        ("deleted-command", "alice", TaskState.CANCELED, -9),
        ("deleted-command", "bob", TaskState.PREEMPTED, -9),
        ("preempted-waits", "alice", PENDING, None),
        ("preempted-runs-again", "alice", RUNNING, None),
        ("host-lost-runs-again", "alice", RUNNING, None),
    ],
)
def test_ends(label: str, user: str, state: TaskState, code: int | None) -> None:
    found = task(label, user)
    assert (found.state, found.exit_code) == (state, code)


@pytest.mark.parametrize(
    ("status", "state"),
    [
        (137, TaskState.FAILED),
        (265, TaskState.FAILED),
        (271, TaskState.PREEMPTED),  # ended from outside, by nobody that is named
        (-20, TaskState.NODE_FAIL),
        (-3, TaskState.NODE_FAIL),
        (-27, TaskState.OOM),
        (-29, TaskState.TIMEOUT),
        (-11, TaskState.PREEMPTED),
        (None, TaskState.NODE_FAIL),
    ],
)
def test_statuses(status: int | None, state: TaskState) -> None:
    row = PbsRow("1.vm", "F", 93, status, 1, start=1.0, comment="Job run at … and failed")
    assert pbs_states.end(row, "alice") is state


@pytest.mark.parametrize("letter", ["S", "U"])
def test_a_suspended_job_is_not_lost(letter: str) -> None:
    found = pbs_states.task(PbsRow("1.vm", letter, 45, run_count=1), "alice")
    assert (found.state, found.reason) == (RUNNING, "suspended")


def test_restarts_are_counted_from_the_second_start() -> None:
    assert task("not-rerunnable").restarts == 0
    assert task("preempted-waits").restarts == 1
    assert task("preempted-runs-again").restarts == 1
    assert task("host-lost-runs-again").nodes == ("pb2",)


def test_a_subjob_has_the_status_of_its_array_unless_it_ran() -> None:
    job = Job("137[].vm", 6)

    def states(label: str) -> list[TaskState]:
        return [t.state for t in pbs_states.tasks(job, shown(label), "alice", asked=True)]

    gone = [TaskState.CANCELED] * 3
    assert states("array-two-deleted") == [TaskState.CANCELED, RUNNING, RUNNING, *gone]
    assert states("array-one-rerun") == [TaskState.CANCELED, PENDING, RUNNING, *gone]
    assert states("array-deleted") == [TaskState.CANCELED] * 6
    three = Job("139[].vm", 3)
    rows = shown("array-deleted-queued")
    assert [t.state for t in pbs_states.tasks(three, rows, "alice", asked=True)] == gone


def test_an_array_says_nothing_about_its_tasks() -> None:
    rows = {row.id: row for row in pbs_text.jobs(recorded("array-done.json")) or []}
    assert rows["28[].vm"].exit_status == 0
    found = pbs_states.tasks(Job("28[].vm", 4), rows, "alice", asked=True)
    assert [(t.index, t.state, t.exit_code) for t in found] == [
        (0, TaskState.COMPLETED, 0),
        (1, TaskState.COMPLETED, 0),
        (2, TaskState.FAILED, 3),
        (3, TaskState.COMPLETED, 0),
    ]
    rows = {row.id: row for row in pbs_text.jobs(recorded("array-running.json")) or []}
    found = pbs_states.tasks(Job("28[].vm", 4), rows, "alice", asked=True)
    assert [t.state for t in found] == [RUNNING, RUNNING, PENDING, PENDING]


def test_a_job_whose_dependency_failed_waits_in_vain_for_ever() -> None:
    found = task("dependency-in-vain")
    assert (found.state, found.wait.kind) == (PENDING, "in_vain")
    # the former job was deleted before it ran: PBS goes on holding this one
    held = PbsRow("2.vm", "H", 22, holds="s", depends="afterok:1.vm@vm")
    former = PbsRow("1.vm", "F", 91)
    assert pbs_states.task(held, "alice", {"1.vm": former}).wait.kind == "in_vain"
    for former in (PbsRow("1.vm", "F", 92, 0, 1), PbsRow("1.vm", "R", 42, None, 1)):
        assert pbs_states.task(held, "alice", {"1.vm": former}).wait.kind == "other"


def test_an_older_job_with_the_same_id_is_another_one() -> None:
    rows = {"1.vm": PbsRow("1.vm", "F", 92, 0, 1, submitted=1_700_000_000)}
    new = Job("1.vm", 1, "2026-11-21T00:00:00Z")
    assert [t.state for t in pbs_states.tasks(new, rows, "alice", asked=True)] == [TaskState.GONE]
    same = Job("1.vm", 1, "2023-11-15T00:00:00Z")
    [found] = pbs_states.tasks(same, rows, "alice", asked=True)
    assert found.state is TaskState.COMPLETED


# -- why it waits -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("comment", "kind", "reason"),
    [
        ("Can Never Run: Not enough total nodes available", "never",
         "Not enough total nodes available"),
        ("Can Never Run: Insufficient amount of resource: ncpus (R: 64 A: 16 T: 16)", "never",
         "Insufficient amount of resource: ncpus"),
        ("Not Running: Insufficient amount of resource: ncpus (R: 4 A: 0 T: 16)", "other",
         "Insufficient amount of resource: ncpus"),
        ("Not Running: User has reached queue workq running job limit.", "limit",
         "User has reached queue workq running job limit"),
        ("Not Running: would exceed user alice's limit on resource ncpus in complex", "limit",
         "would exceed user alice's limit on resource ncpus in complex"),
        ("Not Running: Queue not started.", "outage", "Queue not started"),
        ("Not Running: Node is in an ineligible state: offline", "outage",
         "Node is in an ineligible state: offline"),
        ("Job run at Sat Nov 21 at 05:57 on (pb3:ncpus=1)", "other", ""),
        ("", "other", ""),
    ],
)  # fmt: skip
def test_comments_are_told_apart(comment: str, kind: str, reason: str) -> None:
    assert (pbs_waits.wait(comment).kind, pbs_waits.words(comment)) == (kind, reason)


def test_a_job_that_never_starts_comes_with_its_repair() -> None:
    wide = pbs_waits.wait("Can Never Run: Not enough total nodes available")
    assert wide.change == "resources.nodes=FEWER" and "resources.nodes" in wide.repair


@pytest.mark.parametrize(
    ("holds", "depends", "kind"),
    [("u", "", "held"), ("us", "afterok:1.vm", "held"), ("s", "afterok:1.vm", "other"),
     ("s", "", "launch"), ("o", "", "launch")],
)  # fmt: skip
def test_holds_are_told_apart(holds: str, depends: str, kind: str) -> None:
    row = PbsRow("1.vm", "H", 20, holds=holds, depends=depends)
    assert pbs_states.task(row, "alice").wait.kind == kind
