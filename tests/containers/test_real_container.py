"""Trials in a real container, by Charliecloud on an image folder: the bits of one outside."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import hpcdet
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files
from tests import experiments as x
from tests.commands import Cli
from tests.containers import image_folder

pytestmark = pytest.mark.skipif(
    shutil.which("ch-run") is None, reason="ch-run is not here: make packages"
)
PACKAGE = Path(hpcdet.__file__).parent


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The image's folder, and its interpreter."""
    folder = tmp_path_factory.mktemp("image")
    return folder, image_folder.build(folder, PACKAGE)


@pytest.fixture
def hpc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Cli]:
    """The command line at a site with containers; data for ``data.stage``."""
    root = tmp_path / "root"
    monkeypatch.setenv("HPCDET_ROOT", str(root))
    monkeypatch.setenv("USER", os.environ.get("USER", "root"))
    site = x.local_site(
        container={
            "kind": "charliecloud",
            "binds": [f"{sysconfig.get_path('purelib')}:{image_folder.PACKAGES}"],
        },
        paths={"local": str(tmp_path / "disk"), "images": str(tmp_path / "images")},
        env={"OMP_NUM_THREADS": "1"},
    )
    file = tmp_path / "contained.yaml"
    file.write_text(yaml.safe_dump({**site.plain(), "name": "contained"}))
    monkeypatch.setenv("HPCDET_SITE", str(file))
    with x.local_jobs(tmp_path / "state"):
        yield Cli(root, capsys)


def written(folder: Path, **changes: Any) -> Path:
    """Write model and config; return the config's path."""
    x.write_model(folder)
    values = x.config(40, ranks=2, **changes)
    (folder / "config.yaml").write_text(yaml.safe_dump(values))
    return folder / "config.yaml"


def ran(hpc: Cli, config: Path, *flags: str) -> ExperimentPaths:
    name = hpc("submit", config, "-o", "id", *flags).out.strip()
    paths = ExperimentPaths(hpc.root / name)
    assert x.run_to_end(paths).state == "COMPLETED", x.story(paths)
    return paths


def test_a_trial_in_a_container_ends_with_the_bits_of_one_outside(
    hpc: Cli, tmp_path: Path, image: tuple[Path, Path]
) -> None:
    folder, python = image
    data = tmp_path / "numbers"
    data.mkdir(mode=0o700)
    (data / "one.txt").write_text("1")
    told = {"stage": [str(data)]}
    environment = {"image": str(folder), "python": str(python)}
    config = written(tmp_path / "model", environment=environment, data=told)
    code = (config.parent / "model_def.py").read_text()
    looks = (
        "import json, sys\n"
        "seen = {'python': sys.executable, 'data': os.environ['HPCDET_DATA'],\n"
        "        'one': Path(os.environ['HPCDET_DATA'], 'numbers/one.txt').read_text(),\n"
        "        'host': Path('/usr/bin/bash').exists()}\n"
        "name = f\"seen-{os.environ.get('RANK', 0)}-{os.environ.get('HPCDET_ATTEMPT')}.json\"\n"
        "Path(os.environ['HPCDET_EXPERIMENT'], name).write_text(json.dumps(seen))\n"
    )
    (config.parent / "model_def.py").write_text(code + looks)
    inside = ran(hpc, config)
    on_host = ("--ignore", "environment.image", "--set", f"environment.python={sys.executable}")
    outside = ran(hpc, config, *on_host)
    for rank in (0, 1):
        there = json.loads((inside.root / f"seen-{rank}-1.json").read_text())
        here = json.loads((outside.root / f"seen-{rank}-1.json").read_text())
        assert there["python"] == str(python) and not there["host"] and here["host"]
        assert there["one"] == here["one"] == "1"
        assert there["data"].startswith(f"{tmp_path}/disk/hpcdet-{os.getuid()}/data-")
    x.same_bits(x.final_digest(inside, 1), x.final_digest(outside, 1), x.story(inside))
    record = files.read_json(inside.provenance)
    assert isinstance(record, dict) and record["images"][str(folder)]["digest"].startswith("sha256")
    x.until(lambda: not list((tmp_path / "disk").glob("*/data-*")))  # the allocation is over


def test_an_image_with_another_hpcdet_is_refused_before_anything_is_queued(
    hpc: Cli, tmp_path: Path, image: tuple[Path, Path]
) -> None:
    folder, python = image
    packages = next(folder.rglob("site-packages"))
    environment = {"image": str(folder), "python": str(python)}
    config = written(tmp_path / "model", environment=environment)
    other = packages / "hpcdet"
    try:
        shutil.copytree(PACKAGE, other, ignore=shutil.ignore_patterns("__pycache__"))
        (other / "__init__.py").write_text('__version__ = "0.0.9"\n')
        said = hpc("submit", config, code=4).err
    finally:
        shutil.rmtree(other)
    assert "the image has hpcdet 0.0.9" in said and f"the job {hpcdet.__version__}" in said
    assert "pip install" in said and not list(hpc.root.glob("*/"))


def test_the_image_itself_runs_without_hpcdet(image: tuple[Path, Path]) -> None:
    folder, python = image
    done = subprocess.run(
        ["ch-run", str(folder), "--", str(python), "-c", "import hpcdet"],
        env={**os.environ, "USER": "somebody", "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "No module named 'hpcdet'" in done.stderr
