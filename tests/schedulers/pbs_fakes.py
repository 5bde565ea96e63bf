"""Fakes of PBS's commands, and what a real OpenPBS 23.06 printed."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcdet.schedulers.common.base import Submission
from hpcdet.schedulers.pbs import pbs_query
from hpcdet.schedulers.pbs.pbs import PbsScheduler
from hpcdet.schedulers.pbs_family import pbs_commands
from hpcdet.site import Site
from hpcdet.site_files import load_site as sites
from tests import RECORDED

OUTPUTS = RECORDED / "pbs"
Fake = Callable[[str, str], None]


def recorded(name: str) -> str:
    return (OUTPUTS / name).read_text()


def printed(*jobs: dict[str, Any]) -> str:
    """What ``qstat -f -F json`` prints."""
    return json.dumps({"Jobs": {one.pop("id"): one for one in map(dict, jobs)}})


@pytest.fixture
def fake_pbs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Fakes of PBS's commands: ``fake_pbs(name, shell lines)``; all calls go to ``calls``."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def make(name: str, body: str) -> None:
        file = folder / name
        file.write_text(f'#!/bin/bash\necho "{name} $*" >> {tmp_path}/calls\n{body}\n')
        file.chmod(0o755)
        pbs_commands.path.cache_clear()

    monkeypatch.setenv("PATH", f"{folder}:{os.defpath}")
    monkeypatch.setenv("HPCDET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PBS_CONF_FILE", str(tmp_path / "pbs.conf"))
    monkeypatch.setattr(pbs_query, "_forms", list(pbs_query._forms))
    return make


def calls(tmp_path: Path, name: str) -> list[str]:
    file = tmp_path / "calls"
    lines = file.read_text().splitlines() if file.exists() else []
    return [line for line in lines if line.startswith(f"{name} ")]


def scheduler(**values: Any) -> PbsScheduler:
    plain = sites.load("generic-pbs").plain()
    site = Site.model_validate({**plain, "limits": {**plain["limits"], "poll_min_s": 0}, **values})
    return PbsScheduler(site)


def submission(tmp_path: Path, tasks: int = 1) -> Submission:
    script = tmp_path / "script.sh"
    script.write_text("#!/bin/bash\n#PBS -N exp-1\n# it's ours\necho $((1+1))\n")
    return Submission("exp-1", "hpcdet:exp:1-ab", script, tasks, tasks)


def says(text: str, code: int = 0, error: str = "") -> str:
    """Shell lines that print this."""
    return f"cat <<'END'\n{text}\nEND\necho {shlex.quote(error)} >&2\nexit {code}"
