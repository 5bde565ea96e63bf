"""The wheel, installed elsewhere, is complete: it runs the demo's search without the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests import TOP

SITE_PACKAGES = next(p for p in sys.path if p.endswith("site-packages"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel; what it needs comes from this one's packages."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=TOP,
        check=True,
        capture_output=True,
    )
    [wheel] = folder.glob("*.whl")
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel], check=True
    )
    [packages] = (folder / "venv" / "lib").glob("python*/site-packages")
    # behind the wheel's own folder, so that hpcdet comes from the wheel and all else from here
    (packages / "dependencies.pth").write_text(f"{SITE_PACKAGES}\n")
    return folder / "venv"


@pytest.mark.xdist_group("wheel")
def test_the_demo_runs_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    environment = {
        key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "HPCDET_SITE"}
    }
    environment |= {
        "HPCDET_ROOT": str(tmp_path / "root"),
        "HPCDET_LOCAL_STATE": str(tmp_path / "l"),
    }
    where = subprocess.run(
        [installed / "bin" / "python", "-c", "import hpcdet; print(hpcdet.__file__)"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert str(installed) in where.stdout

    example = TOP / "examples" / "digits"
    done = subprocess.run(
        [
            installed / "bin" / "hpcdet",
            *("submit", example / "random.yaml", "--site", "local", "--wait", "-o", "id"),
            *("--set", "searcher.max_trials=1", "--set", "searcher.max_length.batches=20"),
        ],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = subprocess.run(
        [installed / "bin" / "hpcdet", "report", done.stdout.strip(), "-o", "report.html"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert report.returncode == 0, report.stderr
    assert "<svg" in (tmp_path / "report.html").read_text()
