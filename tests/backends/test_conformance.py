"""Every backend does the same with the same verbs: one story, told on each of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpcdet.testing import Conformance
from tests import TOP

TOY = Path(__file__).parent / "toy"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("backends")


@pytest.fixture(scope="module")
def toys(place: Path) -> Path:
    """The folder in which the distribution of the toy backend is installed."""
    folder = place / "installed"
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*argv, "--no-index", "--target", str(folder), str(TOY)], check=True)
    return folder


def site(folder: Path, name: str, **values: Any) -> str:
    """The path of a site file, as impatient as the shipped one for this machine."""
    path = folder / f"{name}.yaml"
    hurried = {"limits": {"poll_min_s": 0.2}, "lease_ttl_s": 10}
    path.write_text(yaml.safe_dump({"name": name, **hurried, **values}))
    path.chmod(0o600)
    return str(path)


@pytest.fixture(scope="module")
def wanted(place: Path) -> dict[str, Any]:
    """What is told on this machine without a scheduler."""
    environ = {"HPCDET_LOCAL_STATE": str(place / "state"), "HPCDET_CACHE": str(place / "cache")}
    return Conformance(site(place, "here", extends="local"), place / "here", environ).tell()


def test_a_search_of_six_trials_ends_well_everywhere(wanted: dict[str, Any]) -> None:
    search = wanted["search"]
    assert [trial["state"] for trial in search["show"][0]["trials"]] == ["COMPLETED"] * 6
    assert len({digest for _, digest in search["digests"]}) == 6
    control = wanted["control"]
    assert control["found by its job"]
    assert control["canceled"][0] == "CANCELED"


@pytest.fixture
def toy(place: Path, toys: Path) -> dict[str, str]:
    """The variables with which hpcdet finds the toy backend."""
    return {
        "PYTHONPATH": os.pathsep.join([str(toys), str(TOP)]),
        "TOY_SPOOL": str(place / "spool"),
        "HPCDET_CACHE": str(place / "toy-cache"),
    }


def test_a_backend_in_one_file_of_another_distribution(
    place: Path, toy: dict[str, str], wanted: dict[str, Any]
) -> None:
    there = {"env": {"TOY_SPOOL": toy["TOY_SPOOL"]}, "launcher": {"kind": "local"}}
    told = Conformance(site(place, "toy", scheduler="toy", **there), place / "toy", toy).tell()
    assert told == wanted
    assert len(list(Path(toy["TOY_SPOOL"]).iterdir())) >= 2, "each worker was a job of its own"
