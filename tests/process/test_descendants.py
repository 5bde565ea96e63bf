"""A notice to a rank reaches the script that its command has started, however that does it."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests import ranks

SCRIPT = """
import subprocess, time
from hpcdet import checkpoint, core

with core.init() as context:
    helper = subprocess.Popen(["sleep", "600"])  # hears notices as any program does: it dies
    step = 0
    try:
        while not context.preempt.should_preempt():
            step += 1
            context.train.report_training_metrics(step, {"loss": 1.0})
            time.sleep(0.01)
        helper_lives = helper.poll() is None
    finally:
        helper.kill()
    context.train.report_validation_metrics(step, {"helper_lives": float(helper_lives)})
    context.checkpoint.save({"step": step}, step)
"""
PYTHON = '"$PY" script.py'


@pytest.mark.parametrize(
    ("entrypoint", "count"),
    [
        (f"(cd . && time -p {PYTHON}) 2>&1 | cat; exit 0", 1),
        (f"trap : TERM; {PYTHON}; exit $?", 1),
        (f"cd . && python3 -m determined.launch.torch_distributed -- {PYTHON}; exit $?", 2),
    ],
    ids=["a pipeline", "a trap", "a launcher"],
)
def test_the_script_of_a_shell_saves_and_leaves(
    tmp_path: Path, entrypoint: str, count: int
) -> None:
    """And what it has started itself is left alone."""
    trial = ranks.experiment(
        tmp_path / "EXP", code="", ranks=count, entrypoint=["bash", "-c", entrypoint], until=10**6
    )
    (tmp_path / "EXP" / "code" / "script.py").write_text(SCRIPT)
    with ranks.start(trial, count, PY=sys.executable) as attempt:
        attempt.wait_for(lambda: any(line["kind"] == "first_step" for line in attempt.lines()))
        attempt.signal(signal.SIGTERM)
        assert attempt.wait() == [0] * count, attempt.log()
    verdict = attempt.verdict()
    assert verdict is not None, attempt.log()
    assert (verdict.verdict, verdict.cause) == ("resume", "signal"), attempt.log()
    assert verdict.checkpoint
    metrics = [line["metrics"] for line in attempt.lines() if line["kind"] == "metrics"]
    assert metrics[-1] == {"helper_lives": 1.0}


def test_a_script_that_a_shell_starts_after_the_notice_hears_of_it(tmp_path: Path) -> None:
    trial = ranks.experiment(
        tmp_path / "EXP",
        code="",
        # sh unblocks all signals when it waits
        entrypoint=f"sleep 0; touch begun; while test ! -e go; do sleep 0.1; done; {PYTHON}; exit",
        until=10**6,
    )
    code = tmp_path / "EXP" / "code"
    (code / "script.py").write_text(SCRIPT)
    with ranks.start(trial, 1, PY=sys.executable) as attempt:
        attempt.wait_for((code / "begun").exists)
        attempt.signal(signal.SIGUSR2)
        time.sleep(0.5)  # for shell and sleep to be told, if anybody did
        (code / "go").touch()
        assert attempt.wait() == [0], attempt.log()
    verdict = attempt.verdict()
    assert verdict is not None and (verdict.verdict, verdict.cause) == ("resume", "signal")


@pytest.mark.parametrize("killed", ["rank", "shell", "script"])
def test_no_script_outlives_its_rank_whichever_process_is_killed(
    tmp_path: Path, killed: str
) -> None:
    trial = ranks.experiment(
        tmp_path / "EXP", code="", entrypoint=f"{PYTHON} | cat; exit 3", until=10**6
    )
    (tmp_path / "EXP" / "code" / "script.py").write_text(SCRIPT.replace("sleep", "true", 1))
    with ranks.start(trial, 1, PY=sys.executable) as attempt:
        attempt.wait_for(lambda: any(line["kind"] == "first_step" for line in attempt.lines()))
        rank = psutil.Process(attempt.processes[0].pid)
        below = rank.children(recursive=True)
        [script] = [one for one in below if one.name().startswith("python")]
        {"rank": rank, "shell": below[0], "script": script}[killed].kill()
        code = attempt.wait()
        _, left = psutil.wait_procs(below, timeout=60)
        for one in left:
            one.kill()
    assert not left
    assert code == [3 if killed == "script" else -9]


@pytest.mark.parametrize("stopped", ["rank", "script"])
def test_a_notice_waits_for_what_is_stopped(tmp_path: Path, stopped: str) -> None:
    trial = ranks.experiment(tmp_path / "EXP", code="", entrypoint=f"{PYTHON}; exit", until=10**6)
    (tmp_path / "EXP" / "code" / "script.py").write_text(SCRIPT)
    with ranks.start(trial, 1, PY=sys.executable) as attempt:
        attempt.wait_for(lambda: any(line["kind"] == "first_step" for line in attempt.lines()))
        rank = psutil.Process(attempt.processes[0].pid)
        held = [rank] if stopped == "rank" else rank.children(recursive=True)
        for one in held:
            one.suspend()
        attempt.signal(signal.SIGTERM)
        time.sleep(0.5)
        for one in held:
            one.resume()
        assert attempt.wait() == [0], attempt.log()
    verdict = attempt.verdict()
    assert verdict is not None and (verdict.verdict, verdict.cause) == ("resume", "signal")


@pytest.mark.parametrize(
    "odd",
    [
        "[os.close(fd) for fd in (0, 1, 2)]",
        "if os.fork() == 0: os.setsid(); os.fork() or time.sleep(20); os._exit(0)",
    ],
    ids=["closes its streams", "leaves a daemon"],
)
def test_odd_scripts_save_and_leave(tmp_path: Path, odd: str) -> None:
    trial = ranks.experiment(tmp_path / "EXP", code="", entrypoint=f"{PYTHON}; exit", until=10**6)
    script = SCRIPT.replace("    step = 0\n", f"    step = 0\n    {odd}\n")
    script = script.replace("import", "import os,", 1)
    (tmp_path / "EXP" / "code" / "script.py").write_text(script)
    with ranks.start(trial, 1, PY=sys.executable) as attempt:
        attempt.wait_for(lambda: any(line["kind"] == "first_step" for line in attempt.lines()))
        attempt.signal(signal.SIGTERM)
        assert attempt.wait() == [0], attempt.log()
    verdict = attempt.verdict()
    assert verdict is not None and (verdict.verdict, verdict.cause) == ("resume", "signal")
