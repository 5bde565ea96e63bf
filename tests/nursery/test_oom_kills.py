"""The kernel's counter of what it killed for memory, as both versions of control groups have it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcdet.warm import oom_kills


@pytest.mark.parametrize(
    ("line", "file", "text"),
    [
        ("0::/job_7/step_0/task_0", "job_7/step_0/memory.events", "oom 4\noom_kill 3\n"),
        ("4:memory:/job_7", "memory/job_7/memory.oom_control", "under_oom 0\noom_kill 3\n"),
    ],
)
def test_the_nearest_group_with_a_counter_is_asked(
    tmp_path: Path, line: str, file: str, text: str
) -> None:
    membership = tmp_path / "cgroup"
    membership.write_text(f"9:name=systemd:/\n{line}\n")
    assert oom_kills.of_group(tmp_path, membership) == oom_kills.of_machine()
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(text)
    assert oom_kills.of_group(tmp_path, membership) == 3
