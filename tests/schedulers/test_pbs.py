"""The PBS backend: what commands print, what is submitted, what is asked and believed.

The outputs under ``recorded/pbs`` are of a real OpenPBS 23.06, whose user is alice. The real thing
itself is in ``tests/pbs``; here a fake ``qsub`` and the like stand in for it.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcdet.errors import Unavailable
from hpcdet.schedulers.common.base import Job, Submission, SubmissionRefused, Task, TaskState, Usage
from hpcdet.schedulers.pbs import pbs_commands, pbs_query
from hpcdet.schedulers.pbs.answers import pbs_ids, pbs_states, pbs_text, pbs_waits
from hpcdet.schedulers.pbs.answers.pbs_text import PbsRow
from hpcdet.schedulers.pbs.pbs import PbsScheduler
from hpcdet.site import Site
from hpcdet.site_files import load_site as sites
from tests import RECORDED

OUTPUTS = RECORDED / "pbs"
PENDING, RUNNING = TaskState.PENDING, TaskState.RUNNING


def recorded(name: str) -> str:
    return (OUTPUTS / name).read_text()


def shown(label: str) -> dict[str, PbsRow]:
    """The rows that a real server showed, by id."""
    rows = pbs_text.jobs(json.dumps({"Jobs": json.loads(recorded("rows.json"))[label]}))
    assert rows is not None
    return {row.id: row for row in rows}


def task(label: str, user: str = "alice") -> Task:
    [row] = shown(label).values()
    return pbs_states.task(row, user)


def printed(*jobs: dict[str, Any]) -> str:
    """What ``qstat -f -F json`` prints."""
    return json.dumps({"Jobs": {one.pop("id"): one for one in map(dict, jobs)}})


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


def test_a_node_file_has_a_line_for_each_process() -> None:
    assert pbs_text.node_file("pb1\npb1\npb2\npb1\n") == {"pb1": 3, "pb2": 1}


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


# -- what is submitted --------------------------------------------------------------------


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Fakes of PBS's commands: ``fake(name, shell lines)``; all calls go to ``calls``."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def make(name: str, body: str) -> None:
        file = folder / name
        file.write_text(f'#!/bin/bash\necho "{name} $*" >> {tmp_path}/calls\n{body}\n')
        file.chmod(0o755)
        pbs_commands.path.cache_clear()

    monkeypatch.setenv("PATH", f"{folder}:{os.defpath}")
    monkeypatch.setenv("HPCDET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PBS_CONF_FILE", str(tmp_path / "pbs.conf"))
    monkeypatch.setattr(pbs_query, "_forms", list(pbs_query._forms))
    return make


def calls(tmp_path: Path, name: str) -> list[str]:
    file = tmp_path / "calls"
    lines = file.read_text().splitlines() if file.exists() else []
    return [line for line in lines if line.startswith(f"{name} ")]


def scheduler(**values: Any) -> PbsScheduler:
    plain = sites.load("generic-pbs").plain()
    site = Site.model_validate({**plain, "limits": {**plain["limits"], "poll_min_s": 0}, **values})
    return PbsScheduler(site)


def submission(tmp_path: Path, tasks: int = 1) -> Submission:
    script = tmp_path / "script.sh"
    script.write_text("#!/bin/bash\n#PBS -N exp-1\n# it's ours\necho $((1+1))\n")
    return Submission("exp-1", "hpcdet:exp:1-ab", script, tasks, tasks)


def says(text: str, code: int = 0, error: str = "") -> str:
    """Shell lines that print this."""
    return f"cat <<'END'\n{text}\nEND\necho {shlex.quote(error)} >&2\nexit {code}"


@pytest.mark.parametrize(("tasks", "job"), [(1, "42.vm"), (5, "42[].vm")])
def test_what_qsub_gets_is_our_script_for_a_job_as_for_an_array(
    tmp_path: Path,
    fake: Callable[[str, str], None],
    monkeypatch: pytest.MonkeyPatch,
    tasks: int,
    job: str,
) -> None:
    fake("qsub", f'cat "$2" > {tmp_path}/got; env > {tmp_path}/env; echo "{job}"')
    monkeypatch.setenv("PBS_JOBID", "7.vm")
    monkeypatch.setenv("PBS_SERVER", "vm")
    ours = submission(tmp_path, tasks)
    assert scheduler().submit(ours) == job
    assert (tmp_path / "got").read_text() == ours.script.read_text()
    [call] = calls(tmp_path, "qsub")
    assert call == f"qsub -f {ours.script}"  # no -V: nothing of the shell goes along
    environ = (tmp_path / "env").read_text()
    assert "PBS_JOBID" not in environ and "PBS_SERVER=vm" in environ
    assert not list(tmp_path.rglob("*.pkl"))  # nothing that a worker could be made to load


@pytest.mark.parametrize(
    ("code", "said", "kind"),
    [
        (38, "qsub: would exceed queue generic's per-user limit", "limit"),
        (3, "qsub: Array job exceeds server or queue size limit", "limit"),
        (162, "Connection refused\nqsub: cannot connect to server vm (errno=15010)", "unavailable"),
        (255, "qsub: cannot connect to server", "unavailable"),
        (166, "qsub: Illegal attribute or resource value Resource_List.select", "invalid"),
        (170, "qsub: Unknown queue", "invalid"),
        (175, "qsub: Bad UID for job execution", "invalid"),
        (187, "qsub: Unknown resource Resource_List.nosuch", "invalid"),
        (188, "qsub: Job violates queue and/or server resource limits", "invalid"),
        (2, "qsub: illegal -N value\nusage: qsub [-a date_time] [-A account_string]", "invalid"),
    ],
)
def test_a_refused_submission_says_what_kind(
    tmp_path: Path, fake: Callable[[str, str], None], code: int, said: str, kind: str
) -> None:
    fake("qsub", says("", code, said))
    with pytest.raises(SubmissionRefused) as caught:
        scheduler().submit(submission(tmp_path))
    assert caught.value.refusal.kind == kind
    assert "qsub" not in caught.value.refusal.message.partition(" ")[0]
    assert "usage" not in caught.value.refusal.message


def test_a_submission_of_unknown_outcome_is_looked_for_and_not_given_up(
    tmp_path: Path, fake: Callable[[str, str], None]
) -> None:
    for body in (
        "true",
        "echo gibberish",
        "kill -9 $$",
        "echo 'No space left on device' >&2; false",
    ):
        fake("qsub", body)
        with pytest.raises(SubmissionRefused) as caught:
            scheduler().submit(submission(tmp_path))
        assert caught.value.refusal.kind == "unavailable", body
    (tmp_path / "bin" / "qsub").unlink()
    with pytest.raises(SubmissionRefused, match="no qsub on PATH") as caught:
        scheduler().submit(submission(tmp_path))
    assert caught.value.refusal.kind == "unavailable"


def test_commands_off_the_path_are_those_of_the_installation(
    tmp_path: Path, fake: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake("qsub", "echo 42.vm")
    (tmp_path / "pbs.conf").write_text(f"# of PBS\nPBS_EXEC={tmp_path}\nPBS_SERVER=vm\n")
    monkeypatch.setenv("PATH", os.defpath)
    pbs_commands.path.cache_clear()
    assert scheduler().submit(submission(tmp_path)) == "42.vm"
    assert pbs_commands.server() == "vm"


def test_a_lost_submission_is_found_by_its_tag_only(
    tmp_path: Path, fake: Callable[[str, str], None]
) -> None:
    def job(number: int, tag: str) -> dict[str, Any]:
        return {"id": f"{number}.vm", "job_state": "Q", "Variable_List": {"HPCDET_TAG": tag}}

    fake("qselect", "echo 41.vm; echo 42.vm")
    fake("qstat", says(printed(job(41, "hpcdet:exp:1-old"), job(42, "hpcdet:exp:1-ab"))))
    assert scheduler().find("exp-1", "hpcdet:exp:1-ab") == "42.vm"
    assert calls(tmp_path, "qselect")[0].startswith("qselect -x -N exp-1 -u ")
    assert scheduler().find("exp-1", "hpcdet:exp:1-cd") is None
    fake("qselect", "true")
    assert scheduler().find("exp-1", "hpcdet:exp:1-ab") is None
    fake("qselect", "exit 162")
    with pytest.raises(Unavailable):
        scheduler().find("exp-1", "hpcdet:exp:1-ab")


# -- what is asked and believed -----------------------------------------------------------


def test_one_call_answers_for_all_jobs_and_says_which_are_gone(
    tmp_path: Path, fake: Callable[[str, str], None]
) -> None:
    one = {"id": "1.vm", "job_state": "R", "run_count": 1, "exec_host": "pb1/0"}
    fake("qstat", says(printed(one), 153, "qstat: Unknown Job Id 2.vm"))
    said = scheduler().query([Job("1.vm", 1), Job("2.vm", 1)])
    assert [t.state for t in said["1.vm"] + said["2.vm"]] == [RUNNING, TaskState.GONE]
    assert calls(tmp_path, "qstat") == ["qstat -x -t -f -F json 1.vm 2.vm"]


def test_a_json_that_does_not_parse_is_asked_for_again_as_text(
    tmp_path: Path, fake: Callable[[str, str], None]
) -> None:
    fake("qstat", f'case "$*" in *json*) echo "{{";; *) cat {OUTPUTS}/running.txt;; esac')
    [found] = scheduler().query([Job("144.vm", 1)])["144.vm"]
    assert (found.state, found.nodes) == (RUNNING, ("pb1", "pb2"))
    assert len(calls(tmp_path, "qstat")) == 2


def test_a_json_of_the_first_job_only_is_not_believed_twice(
    tmp_path: Path, fake: Callable[[str, str], None]
) -> None:
    one = printed({"id": "1.vm", "job_state": "R", "run_count": 1})
    text = "Job Id: 1.vm\n    job_state = R\nJob Id: 2.vm\n    job_state = Q\n"
    fake("qstat", f'case "$*" in *json*) echo \'{one}\';; *) echo "{text}";; esac')
    both = [Job("1.vm", 1), Job("2.vm", 1)]
    for _ in range(2):
        said = scheduler(limits={"poll_min_s": 0}).query(both)
        assert [t.state for t in said["1.vm"] + said["2.vm"]] == [RUNNING, PENDING]
        shutil.rmtree(tmp_path / "cache")
    forms = ["json" in call for call in calls(tmp_path, "qstat")]
    assert forms == [True, False, False]


@pytest.mark.parametrize(
    "body",
    [
        "exit 255",
        "echo '{'",  # in both forms, and without an error
        says('{"Jobs": {}}'),
        says('{"Jobs": {}}', 153, "qstat: Unknown Job Id 2.vm"),  # says nothing of this one
    ],
)
def test_an_answer_that_says_nothing_about_a_job_is_none(
    fake: Callable[[str, str], None], body: str
) -> None:
    fake("qstat", body)
    with pytest.raises(Unavailable):
        scheduler().query([Job("1.vm", 1)])


def test_what_is_over_is_not_asked_about_again(
    tmp_path: Path, fake: Callable[[str, str], None]
) -> None:
    over = {"id": "1.vm", "job_state": "F", "substate": 92, "Exit_status": 0, "run_count": 1}
    live = {"id": "2.vm", "job_state": "R", "run_count": 1}
    both = [Job("1.vm", 1), Job("2.vm", 1)]
    fake("qstat", says(printed(over, live)))
    asked = scheduler()
    assert asked.query(both)["1.vm"][0].state is TaskState.COMPLETED
    again = pbs_text.decode(asked._live.ask(frozenset({"1.vm", "2.vm"})))
    assert again.keys() == {"1.vm", "2.vm"}
    said = [call.partition("json ")[2] for call in calls(tmp_path, "qstat")]
    assert said == ["1.vm 2.vm", "2.vm"]


def test_accounting_is_what_the_server_remembers(fake: Callable[[str, str], None]) -> None:
    ran = {
        "id": "1.vm", "job_state": "F", "substate": 92, "Exit_status": 0, "run_count": 1,
        "stime": "Sat Nov 21 06:02:09 2026", "obittime": "Sat Nov 21 06:02:14 2026",
        "resources_used": {"walltime": "00:00:04"}, "Resource_List": {"ngpus": 2},
    }  # fmt: skip
    never = {"id": "2.vm", "job_state": "F", "substate": 91}
    fake("qstat", says(printed(ran, never)))
    found = scheduler().usage([Job("1.vm", 1), Job("2.vm", 1)])
    assert found == {"1.vm": [Usage("1.vm", 0, 1795240929, 1795240934, 4, 2)], "2.vm": []}


def test_changes_of_jobs(tmp_path: Path, fake: Callable[[str, str], None]) -> None:
    for name in ("qdel", "qalter", "qhold", "qrls"):
        fake(name, "exit 35")  # over already
    fake("qstat", "exit 153")
    pbs = scheduler()
    pbs.hold("12[].vm", True)
    pbs.hold("12[].vm", False)
    pbs.throttle("12[].vm", 3)
    pbs.throttle("12.vm", 3)
    said = (tmp_path / "calls").read_text().splitlines()
    assert said == [
        "qhold -h u 12[].vm",
        "qrls -h u 12[].vm",
        "qalter -W max_run_subjobs=3 12[].vm",
    ]
    pbs.cancel("12[].vm", 3)
    assert calls(tmp_path, "qdel") == ["qdel 12[3].vm"]
    fake("qdel", "echo 'qdel: cannot connect to server vm' >&2; exit 255")
    with pytest.raises(Unavailable, match="cannot connect"):
        pbs.cancel("12.vm")


def test_a_job_that_waited_in_vain_leaves_the_history_when_it_is_canceled(
    tmp_path: Path, fake: Callable[[str, str], None]
) -> None:
    fake("qdel", '[ "$1" = -x ] || exit 35')
    fake("qstat", says(printed({"id": "2.vm", "job_state": "F", "substate": 92})))
    scheduler().cancel("2.vm")
    assert calls(tmp_path, "qdel") == ["qdel 2.vm", "qdel -x 2.vm"]
    ended = {"id": "2.vm", "job_state": "F", "substate": 92, "Exit_status": 0, "run_count": 1}
    fake("qstat", says(printed(ended)))
    scheduler().cancel("2.vm")
    assert calls(tmp_path, "qdel")[2:] == ["qdel 2.vm"]


def test_only_what_waits_is_pruned(tmp_path: Path, fake: Callable[[str, str], None]) -> None:
    letters = "XRQQRQ"
    subjobs = [{"id": f"12[{i}].vm", "job_state": s} for i, s in enumerate(letters)]
    fake("qdel", "true")
    fake("qstat", says(printed({"id": "12[].vm", "job_state": "B"}, *subjobs)))
    scheduler().prune("12[].vm")
    assert calls(tmp_path, "qdel") == ["qdel 12[2-3].vm", "qdel 12[5].vm"]
    fake("qstat", says(printed({"id": "12[].vm", "job_state": "Q"})))
    scheduler().prune("12[].vm")
    assert calls(tmp_path, "qdel")[2:] == ["qdel 12[].vm"]
    fake("qstat", says(printed({"id": "13.vm", "job_state": "R"})))
    scheduler().prune("13.vm")
    assert len(calls(tmp_path, "qdel")) == 3
