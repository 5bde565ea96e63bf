"""Torque: what its commands print means, and what they are given.

``recorded/torque/documented-*`` are written after the formats in Torque's manual; ``wrapper-*`` is
what Slurm's wrappers (22.05) printed. The wrappers themselves are run in ``tests/slurm``.
"""

from __future__ import annotations

import getpass
import shlex
import time
from pathlib import Path
from typing import Any

import pytest

from hpcdet.errors import Unavailable
from hpcdet.schedulers.common.allocation import Allocation
from hpcdet.schedulers.common.base import Job, Refusal, SubmissionRefused, Task, TaskState
from hpcdet.schedulers.pbs_family.pbs_text import PbsRow
from hpcdet.schedulers.torque import torque_facts, torque_inside, torque_states, torque_text
from hpcdet.schedulers.torque.torque import TorqueScheduler
from hpcdet.schedulers.torque.torque_names import NAMES
from hpcdet.schedulers.torque.torque_survey import surveyed
from hpcdet.site import Site
from hpcdet.site_files import load_site as sites
from tests import RECORDED
from tests.schedulers.pbs_fakes import Fake, calls, says, submission

OUTPUTS = RECORDED / "torque"


def recorded(name: str) -> str:
    return (OUTPUTS / name).read_text()


def torque(**values: Any) -> TorqueScheduler:
    plain = sites.load("generic-torque").plain()
    limits = {**plain["limits"], "poll_min_s": 0}
    return TorqueScheduler(Site.model_validate({**plain, "limits": limits, **values}))


def asked(found: TorqueScheduler, *jobs: str) -> list[Task]:
    answer = found.query([Job(job, 1) for job in jobs])
    return [answer[job][0] for job in jobs]


def test_a_documented_answer_is_read(fake_pbs: Fake) -> None:
    fake_pbs("qstat", says(recorded("documented-qstat-f.txt"), 153, "qstat: Unknown Job Id 9.head"))
    server = "head.cluster.edu"
    runs, failed, waits, gone = asked(torque(), *(f"{n}.{server}" for n in (41, 42, 43, 9)))
    assert (runs.state, runs.nodes) == (TaskState.RUNNING, ("n13", "n12"))
    assert runs.start == "2026-11-23T09:20:51Z"
    assert (failed.state, failed.exit_code) == (TaskState.FAILED, 3)
    assert failed.end == "2026-11-23T09:21:12Z"
    assert waits.state is TaskState.PENDING and waits.wait.kind == "other"
    assert waits.reason == f"waits for afterany:41.{server}@{server}"
    assert gone.state is TaskState.GONE


def test_a_wrappers_answer_is_read(fake_pbs: Fake) -> None:
    """It shows no exit status, and a held job as one that waits."""
    fake_pbs("qstat", says(recorded("wrapper-qstat-f.txt")))
    runs, ended, held = asked(torque(), "12", "13", "14")
    assert (runs.state, runs.nodes) == (TaskState.RUNNING, ("n1", "n2"))
    assert (ended.state, ended.exit_code) == (TaskState.GONE, None)
    assert held.state is TaskState.PENDING


def test_a_job_that_has_ended_is_not_asked_about_again(
    tmp_path: Path, fake_pbs: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_pbs("qstat", says(recorded("documented-qstat-f.txt")))
    found = torque()
    ended = "42.head.cluster.edu"
    assert asked(found, ended)[0].state is TaskState.FAILED
    fake_pbs("qstat", says("", 153, f"qstat: Unknown Job Id {ended}"))
    monkeypatch.setenv("HPCDET_CACHE", str(tmp_path / "later"))
    assert [task.state for task in asked(found, ended, "50.head")] == [
        TaskState.FAILED,
        TaskState.GONE,
    ]
    assert calls(tmp_path, "qstat")[-1] == "qstat -f 50.head"


@pytest.mark.parametrize(
    ("status", "used_s", "state", "code"),
    [
        (0, 60, TaskState.COMPLETED, 0),
        (271, 60, TaskState.CANCELED, -15),
        (265, 3600, TaskState.TIMEOUT, -9),
        (-11, 3600, TaskState.TIMEOUT, None),
        (-10, 60, TaskState.OOM, None),
        (-3, 0, TaskState.NODE_FAIL, None),
        (262, 60, TaskState.FAILED, -6),
    ],
)
def test_ends(status: int, used_s: float, state: TaskState, code: int | None) -> None:
    row = PbsRow("1.head", "C", exit_status=status, used_s=used_s, walltime_s=3600)
    found = torque_states.task(row)
    assert (found.state, found.exit_code) == (state, code)


def test_a_submission_says_on_the_command_line_what_wrappers_do_not_read(
    tmp_path: Path, fake_pbs: Fake
) -> None:
    for answer in ("44.head.cluster.edu", "15"):
        fake_pbs("qsub", f"echo {answer}")
        assert torque().submit(submission(tmp_path)) == answer
    script = tmp_path / "script.sh"
    assert calls(tmp_path, "qsub") == [f"qsub -r n -j oe -o /dev/null {script}"] * 2
    fake_pbs("qsub", "echo hours left in this month:; echo 44.head; echo 1200")
    assert torque().submit(submission(tmp_path)) == "44.head"


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (says("", 170, "qsub: submit error (Unknown queue MSG=cannot locate queue)"), "invalid"),
        (says("", 1, "qsub: submit error (Maximum number of jobs already in queue)"), "limit"),
        (says("", 1, "Cannot connect to default server host 'head'"), "unavailable"),
        (says(recorded("wrapper-qsub-refused.txt"), 1), "invalid"),
        (says("sbatch: error: Unable to contact slurm controller", 1), "unavailable"),
        ("exit 0", "unavailable"),
        ("echo 15; echo 16", "unavailable"),
    ],
)
def test_refusals(tmp_path: Path, fake_pbs: Fake, answer: str, kind: str) -> None:
    fake_pbs("qsub", answer)
    with pytest.raises(SubmissionRefused) as caught:
        torque().submit(submission(tmp_path))
    assert isinstance(caught.value.refusal, Refusal) and caught.value.refusal.kind == kind


def _named(number: int, name: str, *lines: str, owner: str = "") -> str:
    head = [f"Job_Name = {name}", f"Job_Owner = {owner or getpass.getuser()}@login", *lines]
    return "\n    ".join([f"Job Id: {number}.head", *head, "job_state = R"]) + "\n\n"


def shows(*jobs: str) -> str:
    """Lines of a ``qstat -f`` that shows all jobs, or those that it is asked about."""
    each = [f"{job.split()[2]}) printf %s {shlex.quote(job)} ;;" for job in jobs]
    every = f'[ "$#" -gt 1 ] || {{ printf %s {shlex.quote("".join(jobs))}; exit; }}'
    asked = 'for job in "${@:2}"; do case "$job" in'
    return "\n".join([every, asked, *each, "*) gone=153 ;;", "esac; done", 'exit "${gone:-0}"'])


def test_a_lost_submission_is_found_by_its_name_alone(fake_pbs: Fake) -> None:
    own = _named(7, "exp-1"), _named(8, "exp-2")
    fake_pbs("qstat", shows(*own, _named(9, "exp-1", owner="somebody")))
    assert torque().find("exp-1", "hpcdet:exp:1-ab") == "7.head"
    assert torque().find("exp-3", "hpcdet:exp:3-ab") is None
    fake_pbs("qstat", "exit 153")  # a wrapper, where there is no job
    assert torque().find("exp-1", "hpcdet:exp:1-ab") is None


def test_the_tag_decides_where_variables_are_shown(fake_pbs: Fake) -> None:
    other, own = (f"Variable_List = A=1,HPCDET_TAG=hpcdet:exp:1-{end}" for end in ("zz", "ab"))
    fake_pbs("qstat", shows(_named(7, "exp-1", other)))
    assert torque().find("exp-1", "hpcdet:exp:1-ab") is None
    by_hand = _named(6, "exp-1", "Variable_List = A=1")
    fake_pbs("qstat", shows(by_hand, _named(7, "exp-1", other), _named(8, "exp-1", own)))
    assert torque().find("exp-1", "hpcdet:exp:1-ab") == "8.head"


def test_of_two_jobs_that_may_be_meant_none_is_taken(fake_pbs: Fake) -> None:
    fake_pbs("qstat", shows(_named(7, "exp-1"), _named(8, "exp-1")))
    with pytest.raises(Unavailable, match=r"7\.head, 8\.head have the name exp-1") as caught:
        torque().find("exp-1", "hpcdet:exp:1-ab")
    assert "qdel" in str(caught.value.hint)


def test_variables_of_somebody_elses_job_are_no_jobs(fake_pbs: Fake) -> None:
    """``qsub -v`` takes line breaks, and ``qstat`` prints them."""
    forged = _named(66, "exp-1") + _named(7, "other") + _named(9, "exp-1")
    theirs = _named(9, "a", f"Variable_List = A=1\n\n{forged}", owner="mallory")
    fake_pbs("qstat", shows(theirs))
    assert torque().find("exp-1", "hpcdet:exp:1-ab") is None
    fake_pbs("qstat", shows(theirs, _named(7, "exp-1")))
    assert torque().find("exp-1", "hpcdet:exp:1-ab") == "7.head"


def test_a_name_begins_with_a_letter(fake_pbs: Fake) -> None:
    fake_pbs("qstat", shows(_named(7, "x4d-1")))
    assert torque().find("4d-1", "hpcdet:4d:1-ab") == "7.head"


@pytest.mark.parametrize(
    ("answer", "fails"),
    [
        (says("", 153, "qdel: Unknown Job Id 7.head"), False),
        (says("", 168, "qdel: Request invalid for state of job MSG=invalid state for job"), False),
        ("exit 1", False),  # a wrapper says nothing of a job that has ended
        (says("", 255, "Cannot connect to default server host 'head'"), True),
        ("kill -9 $$", True),
    ],
)
def test_deleting(tmp_path: Path, fake_pbs: Fake, answer: str, fails: bool) -> None:
    fake_pbs("qdel", answer)
    if fails:
        with pytest.raises(Unavailable, match=r"Cannot connect|exit code -9"):
            torque().cancel("7.head")
    else:
        torque().cancel("7.head", 0)
    assert calls(tmp_path, "qdel") == ["qdel 7.head"]


def test_what_runs_and_waits_is_counted_by_user_and_by_account(fake_pbs: Fake) -> None:
    jobs = _named(7, "exp-1", "Account_Name = phys"), _named(8, "a", owner="ann")
    ours = _named(9, "b", "Account_Name = phys", owner="ann").replace("= R", "= Q")
    mine = _named(10, "c").replace("= R", "= H"), _named(11, "d").replace("= R", "= C")
    fake_pbs("qstat", shows(*jobs, ours, *mine))
    own, phys = torque().occupancy(), torque().occupancy("phys")
    assert own.running == {"7.head": 1} and own.waiting == {"10.head"}
    assert phys.running == {"7.head": 1} and torque().occupancy("chem").running == {}
    fake_pbs("qstat", shows(_named(7, "a", "queue = batch"), _named(8, "b", "queue = fast")))
    assert torque().running_in("batch") == {"7.head": 1}


def test_what_somebody_elses_variables_say_is_not_counted(tmp_path: Path, fake_pbs: Fake) -> None:
    charged = "Account_Name = phys"
    forged = "".join(_named(one, "a", charged) for one in (9, 7, 66))
    lines = "job_state = R", f"Variable_List = A=1\n\n{forged}"
    theirs = _named(9, "a", *lines, owner="mallory")
    ours = [_named(one, "b", charged, owner="ann") for one in (20, 21, 22, 23)]
    waits = _named(7, "exp-1", charged).replace("= R", "= Q")
    fake_pbs("qstat", shows(theirs, waits, _named(8, "exp-2"), *ours))
    own = torque().occupancy()
    assert own.running == {"8.head": 1} and own.waiting == {"7.head"}
    phys = torque().occupancy("phys").running
    assert phys == {f"{one}.head": 1 for one in (20, 21, 22, 23)}
    assert len(calls(tmp_path, "qstat")) < 20, "only answers with a forger in them are asked apart"


def test_holds(tmp_path: Path, fake_pbs: Fake) -> None:
    fake_pbs("qhold", "exit 0")
    fake_pbs("qrls", says("qrls: Error on job id 7: Job is no longer pending execution", 1))
    torque().hold("7.head", True)
    torque().hold("7.head", False)
    assert calls(tmp_path, "qhold") + calls(tmp_path, "qrls") == [
        "qhold -h u 7.head",
        "qrls -h u 7.head",
    ]


def test_queues_and_nodes(fake_pbs: Fake) -> None:
    fake_pbs("qstat", says(recorded("documented-qstat-Qf.txt")))
    fake_pbs("pbsnodes", says(recorded("documented-pbsnodes.txt")))
    batch, off = torque().partitions()
    assert (batch.name, batch.max_walltime_s, batch.max_nodes) == ("batch", 172800, 8)
    assert batch.up and not off.up
    features = {group.features for group in torque().node_groups() if group.partition == "batch"}
    assert features == {frozenset({"ib", "gov_phi"}), frozenset({"ib"})}
    fake_pbs("qstat", says(recorded("wrapper-qstat-Qf.txt")))
    fake_pbs("pbsnodes", says(recorded("wrapper-pbsnodes.txt")))
    assert {(one.name, one.nodes, one.up) for one in torque().partitions()} >= {
        ("batch", 4, True),
        ("short", 4, True),
    }


def test_the_survey_is_a_site_file() -> None:
    known = torque_text.queues(recorded("documented-qstat-Qf.txt"))
    nodes = torque_text.nodes(recorded("documented-pbsnodes.txt"))
    found = surveyed("head.cluster.edu", known, nodes[:1])
    assert found.detect == {"torque": "server_name", "match": r"^head(\.|$)"}
    [queue] = found.queues
    assert (queue.name, queue.cpus_per_node, queue.memory_mib) == ("batch", 16, 64519)
    assert queue.chunk == {"gpus": "{{ slots_per_node }}"} and queue.slots_per_node == 2


def test_what_a_site_leaves_open_is_asked_of_the_queue(fake_pbs: Fake) -> None:
    fake_pbs("qstat", says(recorded("documented-qstat-Qf.txt")))
    site = sites.load("generic-torque")
    found, _ = torque_facts.resolved(site, "batch")
    assert (found.limits.max_submit, found.limits.kill_wait_s) == (20, 30.0)
    assert "kill_delay=30 of batch" in found.origins["limits.kill_wait_s"]
    route = "Queue: in\n    queue_type = Route\n    route_destinations = batch\n\n"
    fake_pbs("qstat", says(route + recorded("documented-qstat-Qf.txt")))
    found, _ = torque_facts.resolved(site, "in", fresh=True)
    assert found.limits.kill_wait_s == 30.0


# inside a job


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "nodes"
    file.write_text("n13\nn13\nn12\nn12\n")
    monkeypatch.setenv("PBS_NODEFILE", str(file))
    return file


def test_an_allocation_is_what_server_and_node_file_say(fake_pbs: Fake, hosts: Path) -> None:
    fake_pbs("qstat", says(recorded("documented-qstat-f.txt")))
    job = {"PBS_JOBID": "41.head.cluster.edu", "PBS_NODEFILE": str(hosts)}
    found = torque_inside.allocation(job, 60)
    assert found == Allocation("41.head.cluster.edu", ("n13", "n12"), end_at=1795432851.0)
    assert torque_inside.stands(found)
    daemons = torque_inside.daemons("python", found)
    assert daemons.arguments == ("-host", "n13:2,n12:2") and "PBS_" in daemons.own


def test_where_no_start_is_shown_the_walltime_counts_from_now(fake_pbs: Fake) -> None:
    fake_pbs("qstat", says(recorded("wrapper-qstat-f.txt")))
    found = torque_inside.allocation({"PBS_JOBID": "12"}, None)
    assert found.nodes == ("n1", "n2")
    assert found.end_at is not None and 0 <= time.time() + 600 - found.end_at < 60
    assert not torque_inside.daemons("python", found).arguments


def test_a_server_that_does_not_answer_is_no_evidence(fake_pbs: Fake) -> None:
    fake_pbs("qstat", "exit 1")
    found = torque_inside.allocation({"PBS_JOBID": "12", "PBS_WALLTIME": "3600"}, 60)
    assert found.end_at is not None and found.end_at > time.time() + 3000
    assert torque_inside.stands(found)
    fake_pbs("qstat", says(recorded("wrapper-qstat-f.txt")))
    assert not torque_inside.stands(Allocation("13", ("n1",)))


def test_accelerators_are_those_of_this_host(tmp_path: Path, hosts: Path) -> None:
    here = torque_inside.node_name({})
    (tmp_path / "gpus").write_text(f"{here}-gpu0\n{here}-gpu1\nelse-gpu0\n")
    assert torque_inside.granted_gpus({"PBS_GPUFILE": str(tmp_path / "gpus")}) == 2
    assert torque_inside.granted_gpus({}) == 0


def test_a_node_shows_its_properties(tmp_path: Path, fake_pbs: Fake) -> None:
    fake_pbs("pbsnodes", says(recorded("documented-pbsnodes.txt").partition("n13\n")[0]))
    found = torque_inside.shown_node("n12")
    assert found is not None and found.features == {"ib", "gov_phi"}
    assert calls(tmp_path, "pbsnodes") == ["pbsnodes n12"]


def test_ids_as_people_write_them() -> None:
    assert NAMES.reads("torque:12") and NAMES.reads("12.head") and not NAMES.reads("slurm:12")
    assert NAMES.means("torque:12", "12.head") and NAMES.means("12", "12")
    assert NAMES.task_id("12.head", 0) == "12.head" == NAMES.job_of("12.head")


def test_variables_of_another_job_do_not_reach_a_command(
    fake_pbs: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``PBS_QSTAT_NO_COMPLETE`` would hide how jobs ended."""
    monkeypatch.setenv("PBS_QSTAT_NO_COMPLETE", "1")
    body = says(recorded("documented-qstat-f.txt"))
    fake_pbs("qstat", f'[ -z "$PBS_QSTAT_NO_COMPLETE" ] || exit 153\n{body}')
    assert asked(torque(), "42.head.cluster.edu")[0].state is TaskState.FAILED
