"""The story of all backends, told on a real PBS: what the verbs print is what ``local`` prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from hpcdet.store.fs import files
from hpcdet.testing import Conformance
from tests.pbs_runs import MODES, PbsLab

pytestmark = [pytest.mark.pbs, pytest.mark.xdist_group("pbs")]

_wanted: dict[str, Any] = {}


def wanted(folder: Path) -> dict[str, Any]:
    """What is told on this machine without a scheduler; one telling serves all tests."""
    if not _wanted:
        environ = {"HPCDET_LOCAL_STATE": str(folder / "state")}
        site = folder / "here.yaml"
        values = {"name": "here", "extends": "local", "limits": {"poll_min_s": 0.2}}
        files.replace(site, yaml.safe_dump(values).encode())
        _wanted.update(Conformance(str(site), folder / "here", environ).tell())
    return _wanted


@pytest.mark.parametrize("mode", list(MODES))
def test_the_same_story_is_told_on_it(lab: PbsLab, mode: str) -> None:
    config = {"worker": {"min_segment_s": 5, "idle_s": 10}}
    site = lab.site(capabilities=MODES[mode], config=config)
    told = Conformance(site.source, lab.folder / mode).tell()
    expected = wanted(lab.folder)
    assert told["search"] == expected["search"]
    assert told["control"] == expected["control"]
