"""Why an attempt ended, judged from every kind of evidence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcdet.launchers.opening import first_failed
from hpcdet.schedulers.pbs import pbs_inside
from hpcdet.schedulers.slurm import slurm_inside
from hpcdet.store.folder.records import Control, Verdict
from hpcdet.worker.attempts import evidence as traces
from hpcdet.worker.attempts.exit_reason import Evidence, judge
from hpcdet.worker.attempts.step import PEER_LOST

RUN = Control("run")
OURS = "RuntimeError: mat1 and mat2 shapes cannot be multiplied"
ECHO = "RuntimeError: [gloo/pair.cc:534] Connection closed by peer [127.0.0.1]:4242"
LOADER = "RuntimeError: DataLoader worker (pid 4242) is killed by signal: {}. "
SLURM = "slurmstepd-n1: error: *** STEP 10.0 ON n1 CANCELLED AT 2026-11-21T06:08:10 {} ***\n"
PBS_GONE = '/opt/pbs/bin/pbs_tmrsh: tm_poll(obit): host "pb5" err not connected (17002) 0\n'
CRASHED = "srun: error: n1: task 1: Exited with exit code 1\nsrun: error: n1: task 0: Killed\n"
KILLED = "srun: error: n1: task 1: Killed\nsrun: error: n1: task 0: Exited with exit code 75\n"


def seen(cause: str = "", verdict: str = "resume", said: str = "", /, **facts: Any) -> Evidence:
    word = Verdict(verdict, cause, error=said) if cause else None  # type: ignore[arg-type]
    known = {"verdict": word, "control": RUN, "exit_code": 1, "says": slurm_inside.says}
    return Evidence(**{**known, **facts})


MPI_CRASHED = (
    "mpirun detected that one or more processes exited with non-zero status, thus causing\n"
    "the job to be terminated. The first process to do so was:\n\n"
    "  Process name: [[8187,1],2]\n  Exit code:    1\n"
)
MPI_DIED = "mpirun noticed that process rank 1 with PID 0 on node n1 exited on signal {} ({}).\n"
# prterun's, which breaks the line; Hydra's (MPICH 5.0), recorded; Intel's, as people have shown it
PRTE_DIED = (
    "prterun noticed that process rank 1 with PID 4367 on node n1 exited on\nsignal {} (Killed).\n"
)
BAR = "=" * 83 + "\n"
HYDRA = (
    f"\n{BAR}=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n"
    "=   PID 3760 RUNNING AT n1\n=   EXIT CODE: {}\n=   CLEANING UP REMAINING PROCESSES\n"
    f"=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES\n{BAR}"
    "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: {} (signal {})\n"
    "This typically refers to a problem with your application.\n"
)
HYDRA_KILLED = HYDRA.format(9, "Killed", 9)
INTEL = (
    f"\n{BAR}=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n"
    f"=   RANK {{}} PID 5490 RUNNING AT n1\n=   KILLED BY SIGNAL: {{}} ({{}})\n{BAR}"
)
INTEL_CRASHED = INTEL.format(0, 9, "Killed") + INTEL.format(1, 11, "Segmentation fault")


VERDICTS = [
    (seen("completed", "done"), "completed"),
    (seen("completed", "done", noticed=True, died_of="SIGUSR2"), "completed"),
    (seen("paused"), "paused"),
    (seen("stopped", "done"), "stopped"),
    (seen("stopped", "done", control=Control("kill")), "canceled"),
    (seen("signal"), "preempted"),
    (seen("signal", time_up=True), "walltime"),
    (seen("signal", resized=True), "resized"),
    (seen("signal", resized=True, noticed=True), "preempted"),
    (seen("signal", resized=True, time_up=True), "walltime"),
    (seen("completed", "done", resized=True), "completed"),
    (seen("signal", resized=True, control=Control("kill")), "canceled"),
    (seen("signal", control=Control("kill")), "canceled"),
    (seen("walltime"), "walltime"),
    (seen("error", "fail", OURS), "user_error"),
    (seen("error", "norestart", "InvalidHP: no"), "user_error"),
    (seen("unproven", "resume", "Unproven: rank 0", exit_code=1, first_step=True), "unproven"),
]
NO_FAULT_OF_CODE = [
    (seen(died_of="SIGKILL", first_step=True), "lost"),
    (seen("error", "fail", ECHO, died_of="SIGKILL", first_step=True), "lost"),
    (seen(died_of="SIGKILL", oom=True), "oom"),
    (seen(died_of="SIGKILL", noticed=True), "preempted"),
    (seen(died_of="SIGKILL", noticed=True, time_up=True), "walltime"),
    (seen(died_of="SIGUSR2"), "preempted"),
    (seen(died_of="SIGTERM"), "preempted"),
    # a script without a handler, or with one that only exits
    (seen(died_of="SIGTERM", resized=True), "resized"),
    (seen(exit_code=143, resized=True), "resized"),
    (seen(exit_code=3, resized=True, first_step=True), "resized"),
    (seen(died_of="SIGTERM", resized=True, noticed=True), "preempted"),
    (seen(died_of="SIGTERM", resized=True, time_up=True), "walltime"),
    (seen(died_of="SIGKILL", resized=True, first_step=True), "lost"),
    (seen(stands=False), "preempted"),
    (seen(stands=False, time_up=True), "walltime"),
    (seen(launcher=SLURM.format("DUE TO PREEMPTION")), "preempted"),
    (seen(launcher=SLURM.format("DUE TO JOB REQUEUE")), "preempted"),
    (seen(launcher=SLURM.format("DUE TO TIME LIMIT")), "walltime"),
    (seen(launcher=SLURM.format("DUE TO NODE FAILURE"), exit_code=0), "node_fail"),
    (seen(launcher=SLURM.format("DUE TO NODE FAILURE"), exit_code=0, reclaims=True), "preempted"),
    (seen(launcher="slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0"), "oom"),
    (seen(launcher=KILLED, first_step=True), "lost"),
    (seen(launcher=MPI_DIED.format(9, "Killed"), first_step=True, exit_code=137), "lost"),
    (seen(launcher=PRTE_DIED.format(9), first_step=True, exit_code=137), "lost"),
    (seen(launcher=HYDRA_KILLED, first_step=True, exit_code=9), "lost"),
    (seen("error", "fail", ECHO, launcher=HYDRA_KILLED, first_step=True, exit_code=9), "lost"),
    (seen(launcher=HYDRA_KILLED, oom=True, exit_code=9), "oom"),
    (seen(launcher=HYDRA_KILLED, noticed=True, exit_code=9), "preempted"),
    # what a rank says while it is taken down with the allocation
    (seen(launcher=HYDRA_KILLED, noticed=True, error=OURS, first_step=True), "preempted"),
    (seen("error", "fail", OURS, launcher=HYDRA_KILLED, stands=False), "preempted"),
    (
        seen(launcher=INTEL.format(1, 9, "Killed"), noticed=True, time_up=True, error=OURS),
        "walltime",
    ),
    (seen(launcher=HYDRA.format(15, "Terminated", 15), exit_code=15), "preempted"),
    (seen(launcher=INTEL.format(1, 9, "Killed"), first_step=True, exit_code=9), "lost"),
    (seen(launcher=PBS_GONE, says=pbs_inside.says, first_step=True, exit_code=255), "node_fail"),
    (seen(launcher="ORTE has lost communication with a remote daemon.", exit_code=1), "node_fail"),
    (seen("error", "fail", LOADER.format("Killed"), first_step=True), "lost"),
    (seen("error", "fail", LOADER.format("Killed"), oom=True), "oom"),
    (seen("error", "fail", LOADER.format("User defined signal 2")), "preempted"),
    (seen(exit_code=0, first_step=True), "lost"),
    (seen(exit_code=137, first_step=True), "lost"),  # the launcher itself was killed
    (seen(exit_code=PEER_LOST, first_step=True), "lost"),
    (seen(error=ECHO, first_step=True), "lost"),
]
FAILURES = [
    (seen(error=OURS, first_step=True), ("user_error", OURS)),
    (seen(error=LOADER.format("Bus error"), first_step=True), ("user_error", None)),
    # peers of a rank that raised say that it is gone: the cause is what it said
    (seen("error", "fail", ECHO, error=OURS, first_step=True), ("user_error", OURS)),
    (seen("error", "fail", OURS, error=ECHO, first_step=True), ("user_error", OURS)),
    (seen(launcher=CRASHED, error=OURS, first_step=True), ("user_error", OURS)),
    # an exception at import is the user's, though no step was reached
    (seen(error=OURS, in_user_code=True), ("user_error", OURS)),
    (seen("error", "fail", OURS), ("user_error", OURS)),
    # what the node's own Python says is the node's
    (seen(error="ModuleNotFoundError: No module named 'torch'"), None),
    (seen(exit_code=139, died_of="SIGSEGV", first_step=True), ("user_error", None)),
    (seen(exit_code=139, died_of="SIGSEGV"), None),
    (
        seen(exit_code=139, launcher=MPI_DIED.format(11, "Segmentation fault"), first_step=True),
        ("user_error", "a rank died of SIGSEGV"),
    ),
    (seen(launcher=MPI_CRASHED, error=OURS, first_step=True), ("user_error", OURS)),
    # it has killed the others of the rank that raised
    (seen(launcher=HYDRA_KILLED, error=OURS, first_step=True), ("user_error", OURS)),
    (
        seen(launcher=HYDRA.format(11, "Segmentation fault", 11), first_step=True),
        ("user_error", "a rank died of SIGSEGV"),
    ),
    (  # rank 0 was aborted (6), and it has killed (9) rank 1: 6 | 9 = 15
        seen(launcher=HYDRA.format(6, "Terminated", 15), first_step=True, exit_code=15),
        ("user_error", "a rank died of SIGABRT"),
    ),
    (  # rank 1 was aborted, or had a bus error, and it has killed rank 0
        seen(launcher=HYDRA.format(9, "Terminated", 15), first_step=True, exit_code=15),
        ("user_error", "exit code 15"),
    ),
    (seen(launcher=INTEL_CRASHED, first_step=True), ("user_error", "a rank died of SIGSEGV")),
    (seen(exit_code=3, first_step=True), ("user_error", "exit code 3")),
    (seen(exit_code=3), None),
    (seen(error=ECHO), None),
    (seen(launcher="srun: error: Unable to create step\n"), None),
]


@pytest.mark.parametrize(("evidence", "reason"), [*VERDICTS, *NO_FAULT_OF_CODE])
def test_reason(evidence: Evidence, reason: str) -> None:
    assert judge(evidence)[0] == reason


@pytest.mark.parametrize(("evidence", "expected"), FAILURES)
def test_failures_of_code_are_told_from_failures_of_the_place(
    evidence: Evidence, expected: tuple[str, str | None] | None
) -> None:
    reason, error = judge(evidence)
    assert reason == (expected[0] if expected else "launch_failed")
    assert error == expected[1] if expected and expected[1] else error


def test_why_a_launch_failed_is_said_by_words_not_by_rules() -> None:
    rule = "-" * 74
    boxed = f"noise\n{rule}\nmpirun has detected an attempt to run as root.\n\nMore.\n{rule}\n"
    assert judge(seen(launcher=boxed))[1] == "mpirun has detected an attempt to run as root."
    assert judge(seen(launcher=f"{rule}\nbox\n{rule}\nfirst\nlast\n"))[1] == "last"


def test_the_first_failing_rank_is_found_in_what_launchers_say() -> None:
    assert first_failed(MPI_CRASHED) == 2
    assert first_failed("  Process name: [prterun-n1-4242@1,3]\n  Exit code:    1\n") == 3
    assert first_failed(CRASHED) == 1
    assert first_failed("srun: error: n2: tasks 2-3: Exited with exit code 1") == 2
    assert first_failed("nothing of the kind") is None


def test_the_last_line_of_the_last_traceback_and_whose_code_it_was(tmp_path: Path) -> None:
    code = tmp_path / "code"
    text = (
        "epoch 1\nTraceback (most recent call last):\n"
        f'  File "{code}/model_def.py", line 7, in train_batch\n    f()\n'
        "KeyError: 'a'\n\nDuring handling of the above exception, another exception occurred:\n\n"
        'Traceback (most recent call last):\n  File "/usr/lib/x.py", line 1, in f\n    raise\n'
        "ValueError: two\nlines\nbye\n"
    )
    found = traces.traceback(text, code)
    assert found == traces.Traceback("ValueError: two", in_user_code=True)
    assert traces.traceback(text, tmp_path / "elsewhere") == traces.Traceback(
        "ValueError: two", in_user_code=False
    )
    assert traces.traceback("all is well", code) is None
