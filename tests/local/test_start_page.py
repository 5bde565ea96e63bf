"""The first page of the docs, typed as it stands there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests import TOP
from tests.house.test_docs_examples import blocks

PAGE = TOP / "docs" / "start" / "local.md"


@pytest.mark.timeout(600)
def test_the_ten_minutes_on_one_machine(tmp_path: Path) -> None:
    typed = [
        line.removeprefix("$ ") for text in blocks(PAGE, "console") for line in text.split("\n")
    ]
    commands = [line for line in typed if line.startswith("hpcdet ")]
    assert len(commands) >= 8, "the page has lost its commands"
    [shown] = blocks(PAGE, "yaml")
    environment = {
        **os.environ,
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
        "HPCDET_ROOT": str(tmp_path / "experiments"),
        "HPCDET_LOCAL_STATE": str(tmp_path / "local-state"),
        "XDG_CONFIG_HOME": str(tmp_path / "no-config"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    ended = subprocess.run(
        ["bash", "-e", "-c", "\n".join(commands)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    assert "COMPLETED" in ended.stdout and "4/4 trials ended" in ended.stdout
    [experiment] = (tmp_path / "experiments").iterdir()
    assert (experiment / "report.html").stat().st_size > 10_000
    written = yaml.safe_load((tmp_path / "my-model" / "random.yaml").read_text())
    for key, value in yaml.safe_load(shown).items():
        there = written[key]
        same = {**there, **value} if isinstance(value, dict) else value
        assert there == same, "the page shows what init writes"
