"""A folder with an experiment, as a worker finds it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcdet.store.folder.layout import (
    ExperimentPaths,
)
from hpcdet.store.folder.records import (
    Control,
    Trial,
)
from hpcdet.store.fs import files


@pytest.fixture
def paths(tmp_path: Path) -> ExperimentPaths:
    """An experiment with two trials that may run."""
    paths = ExperimentPaths(tmp_path / "exp-0001")
    files.make_folder(paths.code)
    for number in (1, 2):
        trial = paths.trial(number)
        Trial(number, {}, number).write_once(trial.record)
        Control("run").write_once(trial.control(1))
    return paths
