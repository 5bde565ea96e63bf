"""A command in a session of its own: its end, and the end of all that it started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hpcdet.schedulers.common import processes


def test_a_command_gives_its_exit_code_and_what_it_printed() -> None:
    code = "import sys; print('out', flush=True); print('err', file=sys.stderr); sys.exit(3)"
    assert processes.ended([sys.executable, "-c", code]) == (3, "out\nerr\n")


def test_nothing_that_it_started_outlives_the_timeout(tmp_path: Path) -> None:
    started = tmp_path / "pid"
    # the child would hold the pipe of the output open for ever
    script = f"sleep 600 & echo $! > {started}.part; mv {started}.part {started}; wait"
    with pytest.raises(subprocess.TimeoutExpired):
        processes.ended(["bash", "-c", script], timeout=2)
    assert processes.started(int(started.read_text())) is None
