"""Where a process finds its attempt: by the descriptor of its rank, as far as that leads there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcdet.process import location
from hpcdet.process.location import AttemptLocation


@pytest.mark.parametrize("other", ["nothing", "another folder"])
def test_a_descriptor_of_another_host_or_container_is_passed_over(
    tmp_path: Path, other: str
) -> None:
    """What a command starts by ``srun`` or in a container has the rank's environment."""
    named, elsewhere = tmp_path / "exp-0001", tmp_path / "another"
    named.mkdir()
    elsewhere.mkdir()
    found = named.stat()
    env = {
        **{location.EXPERIMENT: str(named), location.TRIAL: "1", location.ATTEMPT: "2"},
        location.HELD: f"/proc/self/fd/{(fd := os.open(named, os.O_RDONLY))}",
        location.HELD_IS: f"{found.st_dev}:{found.st_ino}",
    }
    try:
        here = AttemptLocation.from_environment(env)
        assert here is not None and str(here.attempt.root).startswith(env[location.HELD])
    finally:
        os.close(fd)
    env[location.HELD] = str(elsewhere if other == "another folder" else tmp_path / "gone")
    there = AttemptLocation.from_environment(env)
    assert there is not None and there.attempt.root.is_relative_to(named)
