"""The story of all backends, told on the private Slurm: what the verbs print is the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from hpcdet.store.fs import files
from hpcdet.testing import Conformance
from tests.slurm_runs import Lab
from tests.slurm_sites import write_site

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]


def test_the_same_story_is_told_on_it(lab: Lab, tmp_path: Path) -> None:
    here = tmp_path / "here.yaml"
    values = {"name": "here", "extends": "local", "limits": {"poll_min_s": 0.2}}
    files.replace(here, yaml.safe_dump(values).encode())
    local = {"HPCDET_LOCAL_STATE": str(tmp_path / "state"), "HPCDET_CACHE": str(tmp_path / "cache")}
    expected = Conformance(str(here), tmp_path / "here", local).tell()
    site = write_site(lab.folder, lab.cluster)
    told = Conformance(str(site), lab.folder / "story", lab.cluster.environment()).tell()
    assert told["search"] == expected["search"]
    assert told["control"] == expected["control"]
