"""The Slurm backend: what commands print, what is submitted, how often is asked.

The outputs under ``recorded/slurm`` are of a real Slurm 22.05. The real thing itself is in
``test_slurm_*``; here a fake ``sbatch`` and the like stand in for it.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcdet.control.leader.lost_workers import Watch
from hpcdet.errors import ConfigError, Unavailable
from hpcdet.schedulers import opening
from hpcdet.schedulers.calls import polling
from hpcdet.schedulers.calls.polling import QueryAnswer, SharedQuery
from hpcdet.schedulers.common import questions
from hpcdet.schedulers.common.base import Job, Submission, SubmissionRefused, Task, TaskState, Usage
from hpcdet.schedulers.common.request import UserOptions
from hpcdet.schedulers.opening import open_scheduler
from hpcdet.schedulers.slurm.answers import slurm_text
from hpcdet.schedulers.slurm.slurm import SlurmScheduler
from hpcdet.site import Site
from hpcdet.site_files import load_site as sites
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Intent, Submitted
from hpcdet.store.fs import files
from tests import RECORDED

OUTPUTS = RECORDED / "slurm"
PENDING, RUNNING, ENDING = TaskState.PENDING, TaskState.RUNNING, TaskState.ENDING


def recorded(name: str) -> str:
    return (OUTPUTS / f"{name}.txt").read_text()


# -- what the commands print --------------------------------------------------------------


def test_squeue_of_a_running_array() -> None:
    rows = [row for row in slurm_text.squeue(recorded("squeue-running")) if row.task.job == "12"]
    waiting = next(row for row in rows if row.task.index == -1)
    assert waiting.indices == {3, 4, 7, 8, 9}
    assert (waiting.task.state, waiting.task.count) == (PENDING, 5)
    said = {row.task.index: row.task for row in rows}
    assert {index: said[index].state for index in (0, 1, 2, 5, 6)} == {
        0: TaskState.FAILED,
        1: TaskState.FAILED,
        2: TaskState.COMPLETED,
        5: RUNNING,
        6: RUNNING,
    }
    assert [said[index].exit_code for index in (0, 1, 2, 5)] == [3, -9, 0, None]
    assert said[5].nodes == ("n1", "n2")
    assert (said[5].start, said[5].end) == ("2026-11-21T13:06:14Z", "2026-11-21T14:06:14Z")


def test_squeue_of_a_canceled_array_has_each_of_its_tasks() -> None:
    tasks = {
        row.task.index: row.task
        for row in slurm_text.squeue(recorded("squeue-canceled"))
        if row.task.job == "12"
    }
    assert tasks.keys() == set(range(10))
    assert [i for i, task in tasks.items() if task.state is TaskState.CANCELED] == [
        3,
        4,
        7,
        8,
        9,
        5,
        6,
    ]
    assert (tasks[3].restarts, tasks[9].restarts) == (1, 0)  # 3 was preempted before


def test_a_job_without_an_array_is_task_0() -> None:
    [row] = [row for row in slurm_text.squeue(recorded("squeue-canceled")) if row.task.job == "18"]
    assert (row.task.index, row.indices, row.task.state) == (0, frozenset({0}), TaskState.COMPLETED)


def test_sacct_tells_ends_and_who_canceled() -> None:
    rows = slurm_text.sacct(recorded("sacct"), uid=0)
    tasks = {row.task.index: row.task for row in rows if row.task.job == "12"}
    assert tasks.keys() == set(range(10))
    assert [tasks[i].exit_code for i in (0, 1, 2)] == [3, -9, 0]
    assert tasks[8].state is TaskState.CANCELED
    by_others = slurm_text.sacct(recorded("sacct"), uid=1001, preempt_as_cancelled=True)
    assert {r.task.state for r in by_others if r.task.index > 2} == {TaskState.PREEMPTED}


def test_lines_that_are_not_understood_are_left_out() -> None:
    text = "slurm_load_jobs: warning\n1|2|NEW_STATE|x|0|1|1|1|0||\n1|2\n|||||||||\n"
    assert slurm_text.squeue(text) == []
    assert slurm_text.sacct("x|y\n12.batch|COMPLETED|0:0|1|1|1|n\n", uid=0) == []


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", "n1"),
        ("", ""),
        ("n[1-3,07],login", "n1 n2 n3 n07 login"),
        ("r[1-2]c[09-10]", "r1c09 r1c10 r2c09 r2c10"),
    ],
)
def test_host_lists(text: str, names: str) -> None:
    assert slurm_text.hosts(text) == tuple(names.split())


def test_partitions_and_times() -> None:
    more = "short|5:00|3|up|REQUEUE|1-2\nwide|n/a|2K|down|GANG,SUSPEND|1-infinite\nnonsense\n"
    parts = {part.name: part for part in slurm_text.sinfo(recorded("sinfo") + more)}
    assert (parts["short"].max_walltime_s, parts["short"].nodes) == (300, 7)
    assert parts["batch"].max_walltime_s is None
    assert [name for name, part in parts.items() if part.default] == ["batch"]
    assert parts["wide"] == slurm_text.PartitionInfo("wide", None, 2048, False, suspends=True)
    assert [name for name, part in parts.items() if part.suspends] == ["wide"]
    assert [parts[name].widest for name in ("batch", "short", "wide")] == [4, 2, 2048]
    times = ["2-12:00:00", "1-0", "01:02:03", "15", "infinite", "UNLIMITED", "n/a"]
    assert [slurm_text.seconds(t) for t in times] == [216000, 86400, 3723, 900, None, None, None]


def test_a_job_is_too_wide_if_none_of_its_partitions_can_ever_give_its_nodes() -> None:
    partitions = "a*|infinite|4|up|OFF|1-2\nb|infinite|8|up|OFF|1-infinite\n"
    asked = "7|a|3\n8|a,b|3\n9|b|9\n10|a,b|9\n11|elsewhere|9\n12|b|1K\n"
    too_wide = [job for job in range(6, 13) if slurm_text.too_wide(str(job), asked, partitions)]
    assert too_wide == [7, 9, 10, 12]


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("sbatch: error: invalid partition specified: nope\nsbatch: error: Batch job submission "
         "failed: Invalid partition name specified", "invalid"),
        ("sbatch: error: Invalid --time specification", "invalid"),
        ("sbatch: error: Batch job submission failed: Requested node configuration is not "
         "available", "invalid"),
        ("sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: "
         "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
         "limit"),
        ("sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: Job "
         "violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
         "limit"),
        # of the same general message, but will never fit
        ("sbatch: error: QOSMaxWallDurationPerJobLimit\nsbatch: error: Batch job submission "
         "failed: Job violates accounting/QOS policy (job submit limit, ...)",
         "invalid"),
        ("sbatch: error: Batch job submission failed: Slurm temporarily unable to accept job, "
         "sleeping and retrying", "limit"),
        ("sbatch: error: Batch job submission failed: Invalid job array specification", "width"),
        ("sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect "
         "failure)", "unavailable"),
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
         "unavailable"),
        ("sbatch: error: If munged is up, restart with --num-threads=10", "unavailable"),
        ("sbatch: fatal: Could not establish a configuration source", "unavailable"),
    ],
)  # fmt: skip
def test_refusals_are_told_apart(message: str, kind: str) -> None:
    refusal = slurm_text.refusal(message)
    assert refusal.kind == kind
    assert "sbatch" not in refusal.message


# -- what is submitted --------------------------------------------------------------------


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Fakes of Slurm's commands: ``fake(name, shell lines)``; all calls go to ``calls``."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def make(name: str, body: str) -> None:
        file = folder / name
        file.write_text(f'#!/bin/bash\necho "{name} $*" >> {tmp_path}/calls\n{body}\n')
        file.chmod(0o755)

    make("srun", "exit 1")  # submitit looks for it
    make("scontrol", "printf 'ClusterName = fake\\nMaxArraySize = 51\\n'")
    monkeypatch.setenv("PATH", f"{folder}:{os.defpath}")
    monkeypatch.setenv("HPCDET_CACHE", str(tmp_path / "cache"))
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    return make


def calls(tmp_path: Path, name: str) -> list[str]:
    lines = (tmp_path / "calls").read_text().splitlines()
    return [line for line in lines if line.startswith(f"{name} ")]


def scheduler(**values: Any) -> SlurmScheduler:
    site = Site.model_validate({**sites.load("generic-slurm").plain(), **values})
    opened = open_scheduler(site)
    assert isinstance(opened, SlurmScheduler)
    return opened


def submission(tmp_path: Path, tasks: int) -> Submission:
    script = tmp_path / "script.sh"
    script.write_text(f"#!/bin/bash\n#SBATCH --array=0-{tasks - 1}\n# it's ours\necho $((1+1))\n")
    return Submission("exp-1", "hpcdet:exp:1-ab", script, tasks, tasks)


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("sbatch: Job 8 to start at {} using 2 processors on nodes n2 in partition batch", True),
        (
            "sbatch: Job 8 to start at {} using 2 processors on nodes n2\nsbatch:   Preempts: 6",
            False,
        ),
        ("allocation failure: Requested node configuration is not available", False),
    ],
    ids=["free", "by ending others", "refused"],
)
def test_a_job_starts_now_if_it_starts_at_once_and_ends_no_other(
    tmp_path: Path, fake: Callable[[str, str], None], said: str, answer: bool
) -> None:
    code = int(said.startswith("allocation"))
    work, script = scheduler(), submission(tmp_path, 4).script
    for after_s, expected in ((0, answer), (180, False)):
        told = said.format(int(time.time()) + after_s)
        fake(
            "sbatch",
            f"echo \"$SLURM_TIME_FORMAT\" >> {tmp_path}/forms\necho '{told}' >&2\nexit {code}",
        )
        assert work.starts_now(script, 2, ["n1", "n9"]) == expected
    asked = "sbatch --test-only --nodes=2-2 --array=0 --exclude=n1,n9 --dependency="
    assert calls(tmp_path, "sbatch") == [f"{asked} {script}"] * 2
    assert (tmp_path / "forms").read_text().split() == ["%s"] * 2


@pytest.mark.parametrize("tasks", [1, 5])
def test_what_sbatch_gets_is_our_script_for_a_job_as_for_an_array(
    tmp_path: Path, fake: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch, tasks: int
) -> None:
    fake("sbatch", f'cat "$2" > {tmp_path}/got; env > {tmp_path}/env; echo "42;fake"')
    monkeypatch.setenv("SBATCH_PARTITION", "wrong")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    ours = submission(tmp_path, tasks)
    assert scheduler().submit(ours) == "42"
    assert (tmp_path / "got").read_text() == ours.script.read_text()
    [call] = calls(tmp_path, "sbatch")
    assert call.startswith("sbatch --parsable ")
    environ = (tmp_path / "env").read_text()
    assert "SBATCH_PARTITION" not in environ and "SLURM_JOB_ID" not in environ
    assert not list(tmp_path.rglob("*.pkl"))  # nothing that a worker could be made to load


def test_a_refused_submission_says_what_kind(
    tmp_path: Path, fake: Callable[[str, str], None], capfd: pytest.CaptureFixture[str]
) -> None:
    fake("sbatch", "echo 'sbatch: error: QOSMaxSubmitJobPerUserLimit' >&2; exit 1")
    with pytest.raises(SubmissionRefused, match="QOSMaxSubmitJobPerUserLimit") as caught:
        scheduler().submit(submission(tmp_path, 2))
    assert caught.value.refusal.kind == "limit"
    fake("sbatch", "echo gibberish")
    with pytest.raises(SubmissionRefused, match="no job id"):
        scheduler().submit(submission(tmp_path, 2))
    assert capfd.readouterr().err == ""  # it is for the caller to say it
    (tmp_path / "bin" / "sbatch").unlink()
    with pytest.raises(SubmissionRefused) as caught:
        scheduler().submit(submission(tmp_path, 2))
    assert caught.value.refusal.kind == "unavailable"


def test_a_lost_submission_is_found_by_its_tag_only(
    tmp_path: Path, fake: Callable[[str, str], None]
) -> None:
    fake("squeue", "echo '41|hpcdet:exp:1-old'; echo '42|hpcdet:exp:1-ab'")
    assert scheduler().find("exp-1", "hpcdet:exp:1-ab") == "42"
    fake("squeue", "")
    assert scheduler().find("exp-1", "hpcdet:exp:1-ab") is None
    fake("sacct", "echo '41_3|hpcdet:exp:1-old'; echo '43_[0-3]|hpcdet:exp:1-ab'")
    with_accounting = scheduler(capabilities={"accounting": True})
    assert with_accounting.find("exp-1", "hpcdet:exp:1-ab") == "43"
    fake("squeue", "exit 1")
    with pytest.raises(Unavailable):
        scheduler().find("exp-1", "hpcdet:exp:1-ab")


def test_accounting_tells_every_run_and_its_gpus(
    tmp_path: Path, fake: Callable[[str, str], None]
) -> None:
    rows = (
        "12_0|1795260000|1795260010|1795260070|55|billing=4,cpu=4,gres/gpu:a100=2,gres/gpu=2,node=1",
        "12_0|1795260080|1795260100|Unknown|7|billing=4,cpu=4,gres/gpu=2,node=1",
        "12_1|1795260000|Unknown|1795260071|0|",
        "12_[2-9]|1795260000|Unknown|Unknown|0|",
        "12_1|1700000000|1700000000|1700000100|100|cpu=1",  # of another job with its id
    )
    fake("sacct", "echo '" + "\n".join(rows) + "'")
    job = Job("12", 10, "2026-11-21T00:00:00Z")
    asked = scheduler(capabilities={"accounting": True})
    assert asked.usage([job]) == {
        "12": [
            Usage("12", 0, 1795260010, 1795260070, 55, 2),
            Usage("12", 0, 1795260100, None, 7, 2),
        ]
    }
    assert calls(tmp_path, "sacct")[0].endswith("-j 12") and "-X -D" in calls(tmp_path, "sacct")[0]
    assert scheduler(capabilities={"accounting": False}).usage([job]) == {}


def test_tasks_that_left_the_queue_are_asked_of_accounting_or_are_gone(
    tmp_path: Path, fake: Callable[[str, str], None]
) -> None:
    fake("squeue", f"cat {OUTPUTS}/squeue-running.txt")
    fake("sacct", "echo '9_0|TIMEOUT|0:0|1795260000|1795260000|1795260060|n1'")
    old, present = Job("9", 2, "2020-01-01T00:00:00Z"), Job("12", 10, "2020-01-01T00:00:00Z")
    new = Job("99", 3, "2099-01-01T00:00:00Z")
    fresh = {"limits": {"poll_min_s": 0}}

    said = scheduler(**fresh, capabilities={"accounting": True}).query([old, present, new])
    assert [(t.index, t.state) for t in said["9"]] == [
        (0, TaskState.TIMEOUT),
        (1, TaskState.GONE),
    ]
    assert sum(task.count for task in said["12"]) == 10
    assert [(t.state, t.count) for t in said["99"]] == [(PENDING, 3)]  # newer than the answer
    assert calls(tmp_path, "sacct")[0].endswith("-j 9")  # of those that are gone, no others

    said = scheduler(**fresh, capabilities={"accounting": False}).query([old])
    assert [t.state for t in said["9"]] == [TaskState.GONE, TaskState.GONE]

    # the id of an old job, used again
    reused = Job("12", 1, "2027-01-01T00:00:00Z")
    assert scheduler(**fresh).query([reused])["12"][0].state in (PENDING, TaskState.GONE)


def test_no_task_is_given_up_before_accounting_was_asked_about_its_end(clock: Clock) -> None:
    """It may have run out of memory since, and be asked anew seldom while nothing changes."""
    live, ends = {0: "COMPLETED", 1: "RUNNING", 2: "RUNNING"}, {0: "COMPLETED"}
    asked: list[float] = []

    def squeue(_: frozenset[str]) -> str:
        row = "12|{}|{}|None|0|1|1|N/A|0||"
        return "\n".join(row.format(*task) for task in live.items())

    def sacct(_: frozenset[str]) -> str:
        asked.append(clock.now)
        said = [(index, ends.get(index, "RUNNING")) for index in range(3)]
        return "\n".join(f"12_{index}|{state}|0:9|1|1|2|n1" for index, state in said)

    slurm = scheduler(capabilities={"accounting": True})
    slurm._live = SharedQuery("live", 60, squeue, clock)
    slurm._accounts = SharedQuery("accounts", 60, sacct, clock)

    def states(wait_s: float) -> list[TaskState]:
        clock.now += wait_s
        tasks = slurm.query([Job("12", 3)])["12"]
        return [task.state for task in sorted(tasks, key=lambda task: task.index)]

    assert states(0) == [TaskState.COMPLETED, RUNNING, RUNNING]
    del live[0]
    while len(asked) < 7:
        states(60)
    del live[1]
    ends[1] = "OUT_OF_MEMORY"
    slurm._live.expect_change()
    assert states(60) == [TaskState.COMPLETED, ENDING, RUNNING] and len(asked) == 7
    assert states(60) == [TaskState.COMPLETED, TaskState.OOM, RUNNING]
    # of the last one accounting never says more
    del live[2]
    while (said := states(60))[2] is not TaskState.GONE:
        assert said[2] in (RUNNING, ENDING)
    assert {states(60)[2] for _ in range(30)} == {TaskState.GONE}


def test_where_jobs_get_no_answers_those_of_others_are_used_while_they_are_good(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def ask(_: frozenset[str]) -> str:
        asked.append(clock.now)
        return "said"

    query, jobs = SharedQuery("q", 60, ask, clock), frozenset({"1"})
    monkeypatch.setenv(questions.VARIABLE, "1")
    with pytest.raises(Unavailable, match="no questions inside jobs"):
        query.get(jobs)
    monkeypatch.delenv(questions.VARIABLE)
    assert query.get(jobs).text == "said"  # somebody on a login node
    monkeypatch.setenv(questions.VARIABLE, "1")
    clock.now += 59
    assert query.get(jobs).text == "said"
    clock.now += 2
    with pytest.raises(Unavailable, match="no questions inside jobs"):
        query.get(jobs)
    assert len(asked) == 1


def test_what_runs_of_a_user_and_of_a_project_is_counted(
    tmp_path: Path, fake: Callable[[str, str], None]
) -> None:
    rows = "p1|40 p1|40 p10|41 p1|42"
    fake(
        "squeue",
        "[[ $* == *--me*%P* ]] && { printf 'gpu|12\\ngpu|12\\ncpu|13\\n'; exit; }\n"
        f"[[ $* == *--me* ]] && cat {OUTPUTS}/squeue-running.txt || tr ' ' '\\n' <<<'{rows}'",
    )
    of_user = scheduler().occupancy()
    assert of_user.running == {"12": 2}
    assert of_user.waiting == {"12"}
    assert scheduler().occupancy("p1").running == {"40": 2, "42": 1}
    assert "--account=p1" in calls(tmp_path, "squeue")[-1]
    assert scheduler().running_in("gpu") == {"12": 2} and scheduler().running_in("x") == {}
    found = opening.of(scheduler().site).script
    user = UserOptions(("-A p2",), "slurm.sbatch_args")
    assert found.project({"account": "p1"}, UserOptions()) == "p1"
    assert found.project({"account": "p1"}, user) == "p2"
    assert found.project({}, UserOptions()) == ""


def test_twenty_askers_cause_one_query(tmp_path: Path, fake: Callable[[str, str], None]) -> None:
    fake("squeue", f"sleep 0.1; cat {OUTPUTS}/squeue-running.txt")
    jobs = [Job("12", 10, "2020-01-01T00:00:00Z")]
    answers: list[dict[str, list[Task]]] = []

    def ask() -> None:
        answers.append(scheduler(capabilities={"accounting": False}).query(jobs))

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 20 and all(answer == answers[0] for answer in answers)
    assert len(calls(tmp_path, "squeue")) == 1


def test_capabilities_are_the_narrower_of_site_and_cluster(
    fake: Callable[[str, str], None],
) -> None:
    able = scheduler(capabilities={"requeue": "user"}, limits={"max_submit": 9}).capabilities()
    assert (able.requeue, able.accounting, able.max_array_tasks, able.max_submit) == (
        (True, False, 51, 9)
    )
    assert scheduler(limits={"max_array": 7}).capabilities().max_array_tasks == 7
    # recorded by an older version: it had asked for accounting alone
    assert scheduler(capabilities={"accounting": True}).capabilities().max_array_tasks == 51
    fake("scontrol", "exit 1")  # a script can be prepared all the same
    assert scheduler(limits={"max_array": 7}).capabilities().max_array_tasks == 7


def test_cancel_and_throttle_leave_ended_jobs_alone(
    tmp_path: Path, fake: Callable[[str, str], None]
) -> None:
    fake("scancel", "echo 'scancel: error: Kill job error on job id 9: Invalid job id' >&2; exit 1")
    fake("scontrol", "echo 'Job has already finished' >&2; exit 1")
    slurm = scheduler()
    slurm.cancel("9")
    slurm.cancel("9", 3)
    slurm.throttle("9", 2)
    slurm.hasten("9", 3)
    slurm.prune("9")
    words = ["scancel 9", "scancel 9_3", "scancel --state=PENDING 9"]
    assert calls(tmp_path, "scancel") == words
    assert calls(tmp_path, "scontrol") == [
        "scontrol update JobId=9 ArrayTaskThrottle=2",
        "scontrol update JobId=9_3 StartTime=now",
    ]
    fake("scancel", "echo 'Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(Unavailable):
        slurm.cancel("9")


def test_a_requeued_task_is_called_back_once(
    tmp_path: Path, fake: Callable[[str, str], None]
) -> None:
    """By default Slurm lets it wait for two minutes."""
    row = "echo '42|{}|PENDING|{}|{}|1|N/A|N/A|0||'"
    fake("squeue", "; ".join(row.format(*task) for task in ((0, "BeginTime", 1), (1, "x", 0))))
    paths = ExperimentPaths(tmp_path / "exp")
    Intent(1, "exp-1", "tag", tasks=2, throttle=2, term=1).write_once(paths.intent(1))
    Submitted("42").write_once(paths.submitted(1))
    slurm = scheduler(limits={"poll_min_s": 0})
    watch = Watch(paths, slurm.site, slurm, time.monotonic)
    for _ in range(3):
        watch.look()
    updates = [call for call in calls(tmp_path, "scontrol") if "update" in call]
    assert updates == ["scontrol update JobId=42_0 StartTime=now"]


def test_a_scheduler_without_a_backend_is_refused() -> None:
    site = Site(name="x", scheduler="nqs")
    with pytest.raises(ConfigError, match="no backend for the scheduler nqs"):
        open_scheduler(site)


# -- how often is asked -------------------------------------------------------------------


class Clock:
    """A clock that stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setenv("HPCDET_CACHE", str(tmp_path / "cache"))
    return Clock()


def test_questions_become_rarer_while_nothing_changes(clock: Clock) -> None:
    asked: list[float] = []
    text = "same"

    def ask(_: frozenset[str]) -> str:
        asked.append(clock.now)
        return text

    query = SharedQuery("q", 60, ask, clock)
    jobs = frozenset({"1"})
    for _ in range(5000):
        query.get(jobs)
        clock.now += 1
    gaps = [later - sooner for sooner, later in itertools.pairwise(asked)]
    assert gaps[0] == 60 and gaps == sorted(gaps) and gaps[-1] == 600
    text = "other"
    clock.now = asked[-1] + 600
    query.get(jobs)
    clock.now += 61
    assert len(asked) == len(gaps) + 2
    query.get(jobs)
    assert len(asked) == len(gaps) + 3


def test_the_site_says_how_rare_questions_become_and_what_counts_as_a_change(
    clock: Clock,
) -> None:
    asked: list[float] = []
    state = "PENDING"

    def ask(_: frozenset[str]) -> str:
        asked.append(clock.now)
        guess = int(clock.now) + 3600  # the scheduler estimates another start each time
        times = f"1795260000|{guess}|{guess + 60}"
        return f"12|0|{state}|Priority|0|{times}|0|\n"

    query = SharedQuery("q", 60, ask, clock, max_s=200, gist=slurm_text.squeue_gist)
    for _ in range(2000):
        query.get(frozenset({"12"}))
        clock.now += 1
    gaps = [later - sooner for sooner, later in itertools.pairwise(asked)]
    assert gaps[:4] == [60, 90, 135, 200] and set(gaps[4:]) == {200}
    state = "RUNNING"
    for _ in range(270):
        query.get(frozenset({"12"}))
        clock.now += 1
    assert 60 in [later - sooner for sooner, later in itertools.pairwise(asked[len(gaps) :])]


def test_what_we_change_ourselves_is_looked_at_soon(clock: Clock) -> None:
    asked: list[float] = []

    def ask(_: frozenset[str]) -> str:
        asked.append(clock.now)
        clock.now += 8
        return "same"

    query = SharedQuery("q", 60, ask, clock)
    query.expect_change()  # nobody has asked yet
    while len(asked) < 8:
        query.get(frozenset({"1"}))
        clock.now += 1
    assert asked[-1] - asked[-2] > 500
    query.expect_change()
    while len(asked) < 9:
        query.get(frozenset({"1"}))
        clock.now += 1
    assert asked[-1] - asked[-2] == 80  # not within ten times what it took


def test_a_new_job_is_asked_for_soon_but_not_sooner_than_the_site_allows(clock: Clock) -> None:
    asked: list[frozenset[str]] = []

    def ask(wanted: frozenset[str]) -> str:
        asked.append(wanted)
        return "same"

    query = SharedQuery("q", 60, ask, clock)
    for _ in range(5):
        query.get(frozenset({"1"}))
        clock.now += 700
    query.get(frozenset({"1"}))
    clock.now += 30
    assert query.get(frozenset({"1", "2"})).wanted == {"1"}
    assert len(asked) == 6
    clock.now += 31
    assert query.get(frozenset({"2"})).wanted == {"1", "2"}  # of other processes along
    assert len(asked) == 7


def test_an_answer_that_costs_much_is_asked_for_less(clock: Clock) -> None:
    count = 0

    def ask(_: frozenset[str]) -> str:
        nonlocal count
        count += 1
        clock.now += 20
        return str(count)

    query = SharedQuery("q", 60, ask, clock)
    query.get(frozenset())
    clock.now += 150
    assert query.get(frozenset()).text == "1"
    clock.now += 50
    assert query.get(frozenset()).text == "2"


def test_a_dead_controller_is_not_hammered_and_is_no_answer(clock: Clock) -> None:
    count = 0

    def ask(_: frozenset[str]) -> str:
        nonlocal count
        count += 1
        raise Unavailable("no controller")

    query = SharedQuery("q", 60, ask, clock)
    for _ in range(200):
        with pytest.raises(Unavailable, match="no controller"):
            query.get(frozenset({"1"}))
        clock.now += 1
    assert count == 3  # at 0, 60 and 150


def test_where_answers_cannot_be_kept_each_process_goes_on_with_its_own(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(polling.files, "replace", full)
    (polling.cache_folder() / "q.lock").mkdir()  # nor can this be opened
    asked: list[float] = []

    def ask(_: frozenset[str]) -> str:
        asked.append(clock.now)
        return str(len(asked))

    query = SharedQuery("q", 60, ask, clock)
    said = []
    for _ in range(4):
        said.append(query.get(frozenset({"1"})).text)
        clock.now += 31
    assert said == ["1", "1", "2", "2"]


def test_an_answer_of_many_jobs_is_kept_as_others_are(clock: Clock) -> None:
    asked: list[float] = []

    def ask(_: frozenset[str]) -> str:
        asked.append(clock.now)
        return "x" * (files.LARGEST + 1)

    for _ in range(2):
        assert len(SharedQuery("q", 60, ask, clock).get(frozenset({"1"})).text) > files.LARGEST
    assert len(asked) == 1


def test_a_file_that_is_damaged_foreign_or_of_the_future_is_asked_anew(
    clock: Clock, tmp_path: Path
) -> None:
    query = SharedQuery("q", 60, lambda _: "new", clock)
    path = polling.cache_folder() / "q.json"
    future = QueryAnswer("old", clock.now + 10_000, wait_s=60).encode()
    for content in (b"{", b"[]", json.dumps({"text": 1}).encode(), future):
        path.write_bytes(content)
        assert query.get(frozenset()).text == "new"
    path.unlink()
    path.symlink_to(path)
    assert query.get(frozenset()).text == "new", "no experiment is paused for it"
    assert path.is_file() and not path.is_symlink()
    (tmp_path / "cache" / "polling").chmod(0o777)
    with pytest.raises(Unavailable, match="belongs to another user"):
        query.get(frozenset())
