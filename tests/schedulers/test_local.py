"""The local backend with shell scripts: no worker, no training."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcdet.schedulers.common import machine, processes
from hpcdet.schedulers.common.base import Job, Submission, SubmissionRefused, Task, TaskState
from hpcdet.schedulers.local import local_job, local_state
from hpcdet.schedulers.local.local import LocalScheduler
from hpcdet.schedulers.local.local_state import JobFolder, JobRecord, ProcessRecord, TaskRecord
from tests.experiments import end_local_jobs, until


@pytest.fixture
def scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalScheduler]:
    monkeypatch.setenv("HPCDET_LOCAL_STATE", str(tmp_path / "state"))
    yield LocalScheduler(slots=2)
    end_local_jobs(tmp_path / "state")


class Jobs:
    """Submits scripts, and asks for their tasks."""

    def __init__(self, folder: Path, scheduler: LocalScheduler) -> None:
        self.folder = folder
        self.scheduler = scheduler
        self.count = 0

    def submit(self, body: str, tasks: int = 1, throttle: int = 0, **request: object) -> Job:
        self.count += 1
        script = self.folder / f"{self.count}.sh"
        request = {"kill_wait_s": 60, **request}
        lines = [f"#HPCDET {key}={value}" for key, value in request.items()]
        script.write_text("\n".join(["#!/bin/bash", *lines, f"cd {self.folder}", body, ""]))
        tag = f"hpcdet:x:{self.count}"
        job = self.scheduler.submit(Submission(f"x-{self.count}", tag, script, tasks, throttle))
        return Job(job, tasks)

    def tasks(self, job: Job) -> list[Task]:
        return self.scheduler.query([job])[job.job]

    def states(self, job: Job) -> list[TaskState]:
        return [task.state for task in self.tasks(job)]

    def end(self, job: Job) -> list[Task]:
        until(lambda: all(state.final for state in self.states(job)), lambda: str(self.tasks(job)))
        return self.tasks(job)


@pytest.fixture
def jobs(tmp_path: Path, scheduler: LocalScheduler) -> Jobs:
    return Jobs(tmp_path, scheduler)


# Each task leaves a file while it runs, and until the test says "go".
HOLD = "touch run.$HPCDET_TASK_INDEX; until [ -e go ]; do sleep 0.05; done"
# One child that may be waited for with signals coming in.
SIT = "sleep 600 & wait $!"


def running(folder: Path) -> int:
    return len(list(folder.glob("run.*")))


def test_exit_codes_become_states_and_the_job_is_found_by_its_tag(
    jobs: Jobs, scheduler: LocalScheduler
) -> None:
    job = jobs.submit("echo from $HPCDET_JOB; exit $HPCDET_TASK_INDEX", 2, output=jobs.folder / "o")
    good, bad = jobs.end(job)
    assert (good.state, good.exit_code) == (TaskState.COMPLETED, 0)
    assert (bad.state, bad.exit_code) == (TaskState.FAILED, 1)
    assert (jobs.folder / "o" / "1.log").read_text() == f"from {job.job}_1\n"
    assert scheduler.find("x-1", "hpcdet:x:1") == job.job
    assert scheduler.find("x-1", "hpcdet:x:other") is None
    assert scheduler.query([Job("local-none", 1)])["local-none"][0].state is TaskState.GONE


def test_old_jobs_are_forgotten_whoever_tidies_up_at_the_same_time(
    jobs: Jobs, scheduler: LocalScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = jobs.submit("true")
    jobs.end(old)
    folder = JobFolder(jobs.folder / "state" / "jobs" / old.job)
    until(lambda: not folder.supervised())
    os.utime(folder.root, (0, 0))
    there = [JobFolder(folder.root.with_name("removed-meanwhile")), folder]
    monkeypatch.setattr(scheduler, "_jobs", lambda: there)
    jobs.end(jobs.submit("true"))
    assert not folder.root.exists()


def test_a_script_that_asks_nonsense_is_refused(jobs: Jobs) -> None:
    with pytest.raises(SubmissionRefused) as caught:
        jobs.submit("true", walltime_s="soon")
    assert caught.value.refusal.kind == "invalid"


def test_throttle_holds_and_may_be_changed(jobs: Jobs, scheduler: LocalScheduler) -> None:
    job = jobs.submit(f"{HOLD}; touch done.$HPCDET_TASK_INDEX", 4, throttle=1)
    until(lambda: jobs.states(job).count(TaskState.RUNNING) == 1)
    scheduler.throttle(job.job, 2)
    until(lambda: jobs.states(job).count(TaskState.RUNNING) == 2)
    until(lambda: running(jobs.folder) == 2)
    (jobs.folder / "go").touch()
    assert [task.state for task in jobs.end(job)] == [TaskState.COMPLETED] * 4


def test_slots_are_shared_by_all_jobs_and_a_wide_task_is_not_starved(jobs: Jobs) -> None:
    order = "echo $HPCDET_JOB >> order"
    narrow = jobs.submit(HOLD, slots=1)
    until(lambda: running(jobs.folder) == 1)
    wide = jobs.submit(order, slots=2)
    waiting = JobFolder(jobs.folder / "state" / "jobs" / wide.job).waiting
    until(waiting.exists, lambda: str(jobs.tasks(wide)))
    # a slot is free, and this one would fit; but the wide one has been waiting for longer
    late = jobs.submit(order, slots=1)
    until(JobFolder(jobs.folder / "state" / "jobs" / late.job).waiting.exists)
    assert jobs.states(wide) == jobs.states(late) == [TaskState.PENDING]
    (jobs.folder / "go").touch()
    jobs.end(narrow)
    jobs.end(late)
    assert (jobs.folder / "order").read_text().split() == [f"{wide.job}_0", f"{late.job}_0"]
    # wider than the machine: alone rather than never
    assert jobs.end(jobs.submit("true", slots=64))[0].state is TaskState.COMPLETED


def test_places_that_are_given_back_while_they_are_counted_trouble_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor removes its own entries without the lock."""
    for name in ("running", "waiting"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "local-1").touch()
    for record in (local_state.PlaceRecord, local_state.ProcessRecord):
        monkeypatch.setattr(record, "read", lambda entry: entry.unlink())
    assert local_state.slots_taken(tmp_path) == set()
    assert not local_state.somebody_before(JobFolder(tmp_path / "jobs" / "local-2"))


def test_a_full_home_folder_delays_a_job_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = JobFolder(tmp_path / "jobs" / "local-1")
    for folder in (job.root / "tasks", tmp_path / "running", tmp_path / "waiting"):
        folder.mkdir(parents=True)
    script = tmp_path / "script.sh"
    script.write_text("exit 3\n")
    JobRecord("x", "t", str(script), tasks=1, throttle=1, slots=1).write_once(job.record)
    refused: list[Path] = []
    leaders: list[int] = []
    replace = local_job.files.replace

    def full_at_first(path: Path, data: bytes) -> None:
        if path.parent.name == "running":
            leaders.append(json.loads(data)["pid"])
        if path not in refused:
            refused.append(path)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        if path == job.place(0):  # what held no places has ended
            assert not list(processes.members(leaders[0]))
            assert not job.waiting.exists()  # newer jobs may go first
        replace(path, data)

    monkeypatch.setattr(local_job.files, "replace", full_at_first)
    supervisor = local_job.Supervisor(job)
    supervisor._wait()
    os.utime(job.waiting, (0, 0))
    supervisor._wait()
    assert job.waiting.stat().st_mtime == 0  # a job that waits writes nothing
    supervisor.run()
    assert refused == [job.place(0), job.task(0)]
    record = TaskRecord.read(job.task(0))
    assert record is not None and (record.state, record.exit_code) == ("failed", 3)
    assert not job.waiting.exists() and not job.place(0).exists()


def test_a_task_that_can_never_start_has_failed_and_holds_up_nobody(jobs: Jobs) -> None:
    never = jobs.submit("true", 2, output=jobs.folder / "1.sh" / "of a file")
    assert [task.state for task in jobs.end(never)] == [TaskState.FAILED] * 2
    folder = JobFolder(jobs.folder / "state" / "jobs" / never.job)
    until(lambda: not folder.supervised())
    assert not folder.waiting.exists()


def test_processes_are_told_from_others_with_names_of_any_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pid, name, session in ((7, b"caf\xc3", 1), (8, b") Z (", 7), (9, b"x", 7)):
        fields = f"{'Z' if pid == 9 else 'S'} 1 1 {session} {'0 ' * 15}{pid}00 0"
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_bytes(b"%d (%s) %s" % (pid, name, fields.encode()))
    monkeypatch.setattr(processes, "_PROC", tmp_path)
    assert processes.started(7) == 700
    assert list(processes.members(7)) == [8]
    assert processes.session_alive(9, 900) is False
    monkeypatch.delattr(processes, "members")  # not for a leader that is there itself
    assert processes.session_alive(7, 700) and not processes.session_alive(7, 701)


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        (tmp_path / "gpus" / str(number)).mkdir(parents=True)
    monkeypatch.setattr(machine, "_GPUS", tmp_path / "gpus")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,7,8")


def test_accelerators_at_work_are_given_to_nobody_else_whatever_the_submitter_sees(
    jobs: Jobs, gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("CUDA_VISIBLE_DEVICES", "HPCDET_LOCAL_DEVICES", "HPCDET_LOCAL_SLOTS")
    (jobs.folder / "inside").mkdir()

    def submit(slots: int) -> list[str]:
        """What such a task has of the names."""
        jobs.scheduler = LocalScheduler()
        said = jobs.folder / "inside"
        job = jobs.submit(
            f"echo ${' $'.join(names)} > .$$; mv .$$ inside/$HPCDET_JOB; {HOLD}", slots=slots
        )
        ours.append(job)
        until((said / f"{job.job}_0").exists, lambda: str(jobs.tasks(job)))
        return (said / f"{job.job}_0").read_text().split()

    ours: list[Job] = []
    inside = submit(3)
    assert inside == ["3,5,7", "3,5,7,8", "4"]
    for name, value in zip(names, inside, strict=True):  # a task of that job submits
        monkeypatch.setenv(name, value)
    assert submit(1)[0] == "8"
    for name in names[1:]:  # another shell
        monkeypatch.delenv(name)
    monkeypatch.setenv(names[0], "8,2")
    assert submit(1)[0] == "2"
    (jobs.folder / "go").touch()
    for job in ours:
        jobs.end(job)


def test_tasks_that_run_together_have_accelerators_of_their_own(jobs: Jobs, gpus: None) -> None:
    jobs.scheduler = LocalScheduler()
    job = jobs.submit(f"echo $CUDA_VISIBLE_DEVICES > gpu.$HPCDET_TASK_INDEX; {HOLD}", 3, slots=2)
    until(lambda: running(jobs.folder) == 2)
    assert sorted(file.read_text() for file in jobs.folder.glob("gpu.*")) == ["3,5\n", "7,8\n"]
    (jobs.folder / "go").touch()
    jobs.end(job)


def test_walltime_warns_then_ends_then_kills(jobs: Jobs) -> None:
    # not in bash, which loses signals
    listen = (
        "import os, signal\n"
        "both = {signal.SIGUSR2, signal.SIGTERM}\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, both)\n"
        "while True:\n"
        "    name = signal.Signals(signal.sigwait(both)).name\n"
        "    os.write(os.open('heard', os.O_CREAT | os.O_APPEND | os.O_WRONLY), name.encode())\n"
    )
    (jobs.folder / "listen.py").write_text(listen)
    job = jobs.submit(
        f"exec {sys.executable} -ES listen.py", walltime_s=6, signal_lead_s=1, kill_wait_s=1
    )
    [task] = jobs.end(job)
    assert task.state is TaskState.TIMEOUT
    assert task.exit_code is None  # it had to be killed
    assert (jobs.folder / "heard").read_text() == "SIGUSR2SIGTERM"


def test_85_starts_it_again_unless_it_was_canceled(jobs: Jobs, scheduler: LocalScheduler) -> None:
    body = "echo $HPCDET_RESTART_COUNT >> starts; [ $HPCDET_RESTART_COUNT = 2 ] || exit 85"
    [task] = jobs.end(jobs.submit(body))
    assert (task.state, task.restarts) == (TaskState.COMPLETED, 2)
    assert (jobs.folder / "starts").read_text().split() == ["0", "1", "2"]

    job = jobs.submit(f"trap 'exit 85' TERM; touch run.$HPCDET_TASK_INDEX; {SIT}", 2, throttle=1)
    until(lambda: running(jobs.folder) == 1)
    scheduler.cancel(job.job)
    assert [task.state for task in jobs.end(job)] == [TaskState.CANCELED] * 2
    assert running(jobs.folder) == 1  # the second never ran


def test_cancel_of_one_task_leaves_the_other_and_kills_all_of_its_session(
    jobs: Jobs, scheduler: LocalScheduler
) -> None:
    # a grandchild in a process group of its own, as a worker's ranks are, and deaf
    deaf = "trap '' TERM; set -m; (trap '' TERM; sleep 600) & "
    job = jobs.submit(f"{deaf} {HOLD}", 2, kill_wait_s=0.2)
    until(lambda: jobs.states(job) == [TaskState.RUNNING] * 2)
    until(lambda: running(jobs.folder) == 2)
    record = TaskRecord.read(JobFolder(jobs.folder / "state" / "jobs" / job.job).task(0))
    assert record is not None and len(list(processes.members(record.pid))) >= 2
    scheduler.cancel(job.job, 0)
    until(lambda: jobs.states(job) == [TaskState.CANCELED, TaskState.RUNNING])
    assert not list(processes.members(record.pid))
    (jobs.folder / "go").touch()
    assert [task.state for task in jobs.end(job)] == [TaskState.CANCELED, TaskState.COMPLETED]


def test_a_killed_supervisor_leaves_its_task_running_then_gone(
    jobs: Jobs, scheduler: LocalScheduler
) -> None:
    job = jobs.submit(HOLD, 2, throttle=1)
    until(lambda: jobs.states(job)[0] is TaskState.RUNNING)
    folder = JobFolder(jobs.folder / "state" / "jobs" / job.job)
    supervisor = ProcessRecord.read(folder.supervisor)
    assert supervisor is not None
    os.kill(supervisor.pid, signal.SIGKILL)
    until(lambda: not folder.supervised())
    assert jobs.states(job) == [TaskState.RUNNING, TaskState.GONE]
    assert jobs.states(Job(job.job, 2)) == [TaskState.RUNNING, TaskState.GONE]
    # it still holds its places: nothing wider starts beside it
    wide = jobs.submit("true", slots=2)
    until(JobFolder(jobs.folder / "state" / "jobs" / wide.job).waiting.exists)
    scheduler.cancel(job.job)
    until(lambda: jobs.states(job) == [TaskState.GONE, TaskState.GONE])
    assert jobs.end(wide)[0].state is TaskState.COMPLETED


def test_a_job_whose_folder_is_removed_ends(jobs: Jobs) -> None:
    job = jobs.submit(HOLD)
    until(lambda: jobs.states(job) == [TaskState.RUNNING])
    folder = JobFolder(jobs.folder / "state" / "jobs" / job.job)
    supervisor, task = ProcessRecord.read(folder.supervisor), TaskRecord.read(folder.task(0))
    assert supervisor is not None and task is not None
    shutil.rmtree(jobs.folder / "state")
    until(lambda: not processes.alive(supervisor.pid, supervisor.start))
    assert not list(processes.members(task.pid))


def test_a_job_inherits_an_allow_list_of_the_environment(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_TOKEN", "secret")
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setenv("HPCDET_RESTART_COUNT", "9")
    [task] = jobs.end(jobs.submit('[ -z "$SOME_TOKEN$RANK" ] && [ -n "$PATH" ]'))
    assert task.state is TaskState.COMPLETED
