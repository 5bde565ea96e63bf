"""The PBS backend: what is submitted, what is asked and believed.

The real thing itself is in ``tests/pbs``; here a fake ``qsub`` and the like stand in for it.
"""

from __future__ import annotations

import getpass
import shutil
from pathlib import Path
from typing import Any

import pytest

from hpcdet.errors import Unavailable
from hpcdet.jobs.diagnosis import tried_submissions
from hpcdet.schedulers.calls import lost_submissions
from hpcdet.schedulers.common.base import Job, SubmissionRefused, TaskState, Usage
from hpcdet.schedulers.common.request import UserOptions
from hpcdet.schedulers.pbs import pbs_query
from hpcdet.schedulers.pbs.pbs_script import SCRIPT
from hpcdet.schedulers.pbs_family import pbs_commands, pbs_text
from tests.schedulers.pbs_fakes import (
    OUTPUTS,
    Fake,
    calls,
    printed,
    says,
    scheduler,
    submission,
)

PENDING, RUNNING = TaskState.PENDING, TaskState.RUNNING


# -- what is submitted --------------------------------------------------------------------


@pytest.mark.parametrize(("tasks", "job"), [(1, "42.vm"), (5, "42[].vm")])
def test_what_qsub_gets_is_our_script_for_a_job_as_for_an_array(
    tmp_path: Path,
    fake_pbs: Fake,
    monkeypatch: pytest.MonkeyPatch,
    tasks: int,
    job: str,
) -> None:
    fake_pbs("qsub", f'cat "$2" > {tmp_path}/got; env > {tmp_path}/env; echo "{job}"')
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
    tmp_path: Path, fake_pbs: Fake, code: int, said: str, kind: str
) -> None:
    fake_pbs("qsub", says("", code, said))
    with pytest.raises(SubmissionRefused) as caught:
        scheduler().submit(submission(tmp_path))
    assert caught.value.refusal.kind == kind
    assert "qsub" not in caught.value.refusal.message.partition(" ")[0]
    assert "usage" not in caught.value.refusal.message


def test_a_submission_of_unknown_outcome_is_looked_for_and_not_given_up(
    tmp_path: Path, fake_pbs: Fake
) -> None:
    for body in (
        "true",
        "echo gibberish",
        "echo 42.vm; echo 42.second",  # which of the two it is nobody knows
        "kill -9 $$",
        "echo 'No space left on device' >&2; false",
    ):
        fake_pbs("qsub", body)
        with pytest.raises(SubmissionRefused) as caught:
            scheduler().submit(submission(tmp_path))
        assert caught.value.refusal.kind == "unavailable", body
    (tmp_path / "bin" / "qsub").unlink()
    with pytest.raises(SubmissionRefused, match="no qsub on PATH") as caught:
        scheduler().submit(submission(tmp_path))
    assert caught.value.refusal.kind == "unavailable"


@pytest.mark.parametrize("job", ["123.second", "123[].second"])
def test_a_job_of_a_second_server_is_known_by_its_whole_id(
    tmp_path: Path, fake_pbs: Fake, job: str
) -> None:
    fake_pbs("qsub", f"echo {job}")
    ours = scheduler()
    assert ours.submit(submission(tmp_path)) == job
    task = job.replace("[]", "[0]")
    rows = [{"id": one, "job_state": "R", "run_count": 1} for one in dict.fromkeys((job, task))]
    fake_pbs("qstat", says(printed(*rows)))
    [found] = ours.query([Job(job, 1)])[job]
    assert (found.state, found.job) == (RUNNING, job)
    assert calls(tmp_path, "qstat") == [f"qstat -x -t -f -F json {job}"]
    fake_pbs("qdel", "true")
    ours.cancel(job)
    assert calls(tmp_path, "qdel") == [f"qdel {job}"]
    # that of the same number of the first server says nothing of it: it is not gone
    namesake = {"id": job.replace("second", "vm"), "job_state": "F", "Exit_status": 0}
    fake_pbs("qstat", says(printed(namesake)))
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(Unavailable, match="said nothing about"):
        scheduler().query([Job(job, 1)])


def test_a_job_that_nobody_has_tried_is_not_called_accepted(tmp_path: Path, fake_pbs: Fake) -> None:
    fake_pbs("qsub", "echo 42.vm")
    [found] = tried_submissions.findings(scheduler().site)
    assert (found.level, found.check) == ("skipped", "partition")
    assert "no trial submission" in found.what and not calls(tmp_path, "qsub")


def test_commands_off_the_path_are_those_of_the_installation(
    tmp_path: Path, fake_pbs: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_pbs("qsub", "echo 42.vm")
    (tmp_path / "pbs.conf").write_text(f"# of PBS\nPBS_EXEC={tmp_path}\nPBS_SERVER=vm\n")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    pbs_commands.path.cache_clear()
    assert scheduler().submit(submission(tmp_path)) == "42.vm"
    assert pbs_commands.server() == "vm"


def test_a_lost_submission_is_found_by_its_tag_only(tmp_path: Path, fake_pbs: Fake) -> None:
    def job(number: int, tag: str) -> dict[str, Any]:
        return {"id": f"{number}.vm", "job_state": "Q", "Variable_List": {"HPCDET_TAG": tag}}

    fake_pbs("qselect", "echo 41.vm; echo 42.vm")
    fake_pbs("qstat", says(printed(job(41, "hpcdet:exp:1-old"), job(42, "hpcdet:exp:1-ab"))))
    assert scheduler().find("exp-1", "hpcdet:exp:1-ab") == "42.vm"
    assert calls(tmp_path, "qselect")[0].startswith("qselect -x -N exp-1 -u ")
    assert scheduler().find("exp-1", "hpcdet:exp:1-cd") is None
    fake_pbs("qselect", "true")
    assert scheduler().find("exp-1", "hpcdet:exp:1-ab") is None
    fake_pbs("qselect", "exit 162")
    with pytest.raises(Unavailable):
        scheduler().find("exp-1", "hpcdet:exp:1-ab")


def test_a_lost_submission_is_looked_for_at_the_server_that_its_script_names(
    tmp_path: Path, fake_pbs: Fake
) -> None:
    """By what two servers printed: ``vm``, the default one, has another job of that name."""
    fake_pbs(
        "qselect",
        """case "$*" in
          *"-q @second") printf '2.second\\n6.second\\n';;
          *"-q @down") echo 'qselect: cannot connect to server down (errno=15010)' >&2; exit 162;;
          *-q*) exit 170;;
          *) echo 10.vm;;
        esac""",
    )
    other = "Job Id: 10.vm\n    job_state = F\n    Variable_List = HPCDET_TAG=hpcdet:exp:1-vm"
    fake_pbs(
        "qstat",
        f'case "$*" in *json*) echo "{{";; *second*) cat {OUTPUTS}/second-server.txt;; '
        f'*) echo "{other}";; esac',
    )
    sent, found = submission(tmp_path), scheduler()

    def job(tag: str, *directives: str) -> str | None:
        sent.script.write_text("\n".join(["#!/bin/bash", *directives, "echo", "#PBS -q a@no"]))
        return lost_submissions.find(found, "exp-1", tag, sent.script)

    assert job("hpcdet:exp:1-ab", "#PBS -q fast", "#PBS -r n -q workq@second") == "6.second"
    assert job("hpcdet:exp:1-vm", "#PBS -q workq@second") is None
    assert job("hpcdet:exp:1-vm", "#PBS -qworkq@second", "#PBS -q workq") == "10.vm"
    assert job("hpcdet:exp:1-ab") is None
    with pytest.raises(Unavailable, match="cannot connect"):
        job("hpcdet:exp:1-ab", "#PBS -q workq@down")
    sent.script.unlink()
    assert lost_submissions.find(found, "exp-1", "hpcdet:exp:1-vm", sent.script) == "10.vm"


def test_a_job_that_came_between_the_exit_and_the_end_of_another_is_submitted_again(
    tmp_path: Path, fake_pbs: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``former`` is what is shown of job 588 one time after the other."""
    monkeypatch.setattr(pbs_query, "_ENDING_LOOK_S", 0.0)
    fake_pbs("qdel", "true")
    fake_pbs(
        "qsub",
        f'echo {"{"}590..599{"}"} | cut -d" " -f$(grep -c qsub {tmp_path}/calls) | sed s/$/.vm/',
    )
    child = "Job Id: 59%s.vm\\n    job_state = %s\\n    substate = 22\\n    depend = %s\\n"

    def submitted(former: str, state: str = "H", depends: str = "afternotok:588.vm@vm") -> str:
        (tmp_path / "calls").unlink(missing_ok=True)
        fake_pbs(
            "qstat",
            f"""case "$*" in *json*) echo "{{";;
            *588*) n=$(grep -c '^qstat.*-f 588' {tmp_path}/calls); set -- {former}
              printf 'Job Id: 588.vm\\n    job_state = %s\\n' ${{!n}};;
            *) printf '{child}' 0 {state} {depends};; esac""",
        )
        return scheduler().submit(ours)

    ours = submission(tmp_path)
    assert submitted("R") == "590.vm" and not calls(tmp_path, "qstat"), "it waits for nothing"
    text = ours.script.read_text()
    ours.script.write_text(text.replace("#PBS", "#PBS -W depend=afternotok:588.vm\n#PBS", 1))
    assert submitted("R") == "590.vm"
    assert submitted("E R") == "590.vm", "it runs again"
    assert submitted("F", "Q", "") == "590.vm", "it was told"
    assert not calls(tmp_path, "qdel")
    assert submitted("E E F") == "591.vm"
    assert calls(tmp_path, "qdel") == ["qdel -x 590.vm"]


# -- what is asked and believed -----------------------------------------------------------


def test_one_call_answers_for_all_jobs_and_says_which_are_gone(
    tmp_path: Path, fake_pbs: Fake
) -> None:
    one = {"id": "1.vm", "job_state": "R", "run_count": 1, "exec_host": "pb1/0"}
    fake_pbs("qstat", says(printed(one), 153, "qstat: Unknown Job Id 2.vm"))
    said = scheduler().query([Job("1.vm", 1), Job("2.vm", 1)])
    assert [t.state for t in said["1.vm"] + said["2.vm"]] == [RUNNING, TaskState.GONE]
    assert calls(tmp_path, "qstat") == ["qstat -x -t -f -F json 1.vm 2.vm"]


def test_a_json_that_does_not_parse_is_asked_for_again_as_text(
    tmp_path: Path, fake_pbs: Fake
) -> None:
    fake_pbs("qstat", f'case "$*" in *json*) echo "{{";; *) cat {OUTPUTS}/running.txt;; esac')
    [found] = scheduler().query([Job("144.vm", 1)])["144.vm"]
    assert (found.state, found.nodes) == (RUNNING, ("pb1", "pb2"))
    assert len(calls(tmp_path, "qstat")) == 2


def test_a_json_of_the_first_job_only_is_not_believed_twice(tmp_path: Path, fake_pbs: Fake) -> None:
    one = printed({"id": "1.vm", "job_state": "R", "run_count": 1})
    text = "Job Id: 1.vm\n    job_state = R\nJob Id: 2.vm\n    job_state = Q\n"
    fake_pbs("qstat", f'case "$*" in *json*) echo \'{one}\';; *) echo "{text}";; esac')
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
def test_an_answer_that_says_nothing_about_a_job_is_none(fake_pbs: Fake, body: str) -> None:
    fake_pbs("qstat", body)
    with pytest.raises(Unavailable):
        scheduler().query([Job("1.vm", 1)])


def test_what_is_over_is_not_asked_about_again(tmp_path: Path, fake_pbs: Fake) -> None:
    over = {"id": "1.vm", "job_state": "F", "substate": 92, "Exit_status": 0, "run_count": 1}
    live = {"id": "2.vm", "job_state": "R", "run_count": 1}
    both = [Job("1.vm", 1), Job("2.vm", 1)]
    fake_pbs("qstat", says(printed(over, live)))
    asked = scheduler()
    assert asked.query(both)["1.vm"][0].state is TaskState.COMPLETED
    again = pbs_text.decode(asked._live.ask(frozenset({"1.vm", "2.vm"})))
    assert again.keys() == {"1.vm", "2.vm"}
    said = [call.partition("json ")[2] for call in calls(tmp_path, "qstat")]
    assert said == ["1.vm 2.vm", "2.vm"]


def test_a_job_that_waited_in_vain_is_asked_about_until_it_is_gone(fake_pbs: Fake) -> None:
    fake_pbs("qstat", says(printed({"id": "2.vm", "job_state": "F", "substate": 92})))
    asked = scheduler()
    assert asked.query([Job("2.vm", 1)])["2.vm"][0].wait.kind == "in_vain"
    fake_pbs("qstat", says("{}", 153, "qstat: Unknown Job Id 2.vm"))
    assert pbs_text.decode(asked._live.ask(frozenset({"2.vm"}))) == {}


def test_accounting_is_what_the_server_remembers(fake_pbs: Fake) -> None:
    ran = {
        "id": "1.vm", "job_state": "F", "substate": 92, "Exit_status": 0, "run_count": 1,
        "stime": "Sat Nov 21 06:02:09 2026", "obittime": "Sat Nov 21 06:02:14 2026",
        "resources_used": {"walltime": "00:00:04"}, "Resource_List": {"ngpus": 2},
    }  # fmt: skip
    never = {"id": "2.vm", "job_state": "F", "substate": 91}
    fake_pbs("qstat", says(printed(ran, never)))
    found = scheduler().usage([Job("1.vm", 1), Job("2.vm", 1)])
    assert found == {"1.vm": [Usage("1.vm", 0, 1795240929, 1795240934, 4, 2)], "2.vm": []}


def test_changes_of_jobs(tmp_path: Path, fake_pbs: Fake) -> None:
    for name in ("qdel", "qalter", "qhold", "qrls"):
        fake_pbs(name, "exit 35")  # over already
    fake_pbs("qstat", "exit 153")
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
    fake_pbs("qdel", "echo 'qdel: cannot connect to server vm' >&2; exit 255")
    with pytest.raises(Unavailable, match="cannot connect"):
        pbs.cancel("12.vm")


def test_a_job_that_waited_in_vain_leaves_the_history_when_it_is_canceled(
    tmp_path: Path, fake_pbs: Fake
) -> None:
    fake_pbs("qdel", '[ "$1" = -x ] || exit 35')
    fake_pbs("qstat", says(printed({"id": "2.vm", "job_state": "F", "substate": 92})))
    scheduler().cancel("2.vm")
    assert calls(tmp_path, "qdel") == ["qdel 2.vm", "qdel -x 2.vm"]
    ended = {"id": "2.vm", "job_state": "F", "substate": 92, "Exit_status": 0, "run_count": 1}
    fake_pbs("qstat", says(printed(ended)))
    scheduler().cancel("2.vm")
    assert calls(tmp_path, "qdel")[2:] == ["qdel 2.vm"]


def test_only_what_waits_is_pruned(tmp_path: Path, fake_pbs: Fake) -> None:
    letters = "XRQQRQ"
    subjobs = [{"id": f"12[{i}].vm", "job_state": s} for i, s in enumerate(letters)]
    fake_pbs("qdel", "true")
    fake_pbs("qstat", says(printed({"id": "12[].vm", "job_state": "B"}, *subjobs)))
    scheduler().prune("12[].vm")
    assert calls(tmp_path, "qdel") == ["qdel 12[2-3].vm", "qdel 12[5].vm"]
    fake_pbs("qstat", says(printed({"id": "12[].vm", "job_state": "Q"})))
    scheduler().prune("12[].vm")
    assert calls(tmp_path, "qdel")[2:] == ["qdel 12[].vm"]
    fake_pbs("qstat", says(printed({"id": "13.vm", "job_state": "R"})))
    scheduler().prune("13.vm")
    assert len(calls(tmp_path, "qdel")) == 3


def test_of_a_held_array_what_has_begun_is_not_pruned(tmp_path: Path, fake_pbs: Fake) -> None:
    fake_pbs("qdel", "true")
    fake_pbs("qstat", f"cat {OUTPUTS}/array-held.json")
    states = [task.state for task in scheduler().query([Job("29[].vm", 5)])["29[].vm"]]
    assert states == [RUNNING, *[PENDING] * 4]
    scheduler().prune("29[].vm")
    assert calls(tmp_path, "qdel") == ["qdel 29[1-4].vm"]


def test_what_runs_of_a_user_and_of_a_project_is_counted(tmp_path: Path, fake_pbs: Fake) -> None:
    fake_pbs(
        "qselect",
        """case "$*" in
          *"-q fast"*) printf '13[4].vm\\n';;
          *-T*-u*) printf '12.vm\\n13[0].vm\\n13[4].vm\\n13[].vm\\n';;
          *-u*) printf '13[].vm\\n14.vm\\n';;
          *-P*) printf '12.vm\\n15.vm\\n';;
          *-A*) printf '12.vm\\n16[1].vm\\n';;
        esac""",
    )
    own = scheduler().occupancy()
    assert own.running == {"12.vm": 1, "13[].vm": 2}
    assert own.waiting == {"13[].vm", "14.vm"}
    assert scheduler().occupancy("p1").running == {"12.vm": 1, "15.vm": 1, "16[].vm": 1}
    assert scheduler().running_in("fast") == {"13[].vm": 1}
    assert f"-u {getpass.getuser()} -q fast" in calls(tmp_path, "qselect")[-1]
    assert all(f"-u {getpass.getuser()}" in line for line in calls(tmp_path, "qselect")[:2])
    user = UserOptions(("-P p2",), "pbs.pbsbatch_args")
    assert SCRIPT.project({"account": "a1"}, UserOptions()) == "a1"
    assert SCRIPT.project({"account": "a1"}, user) == "p2"
