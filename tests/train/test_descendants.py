"""A notice to a rank reaches the script that its command has started, however that does it."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

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
