"""What the structure of the code promises: floors, start-up imports, and no trace of a machine."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import TOP, dose


def tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=TOP, capture_output=True, text=True, check=True
    )
    return [TOP / name for name in listed.stdout.split("\0") if name]


def test_imports_point_downwards() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint], cwd=TOP, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_holds_its_version_only() -> None:
    lines = (TOP / "hpcdet" / "__init__.py").read_text().splitlines()
    code = [line for line in lines if line and not line.startswith('"""')]
    assert len(code) == 1
    assert code[0].startswith("__version__ = ")


@pytest.mark.parametrize(
    "module",
    [
        "hpcdet.control.turn.controller",
        "hpcdet.worker.main",
        "hpcdet.read.views.views",
        "hpcdet.jobs.create.create",
    ],
)
def test_the_login_tower_never_loads_torch(module: str) -> None:
    program = f"import sys, {module}; print([m for m in ('torch', 'h5py') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_the_node_tower_never_loads_the_login_tower() -> None:
    program = (
        "import sys, hpcdet.attempt, hpcdet.determined;"
        "names = ('click', 'jinja2', 'submitit', 'pydantic', 'hpcdet.control', 'hpcdet.config');"
        "print([m for m in names if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_frameworks_write_into_nothing_of_core() -> None:
    owners = {"core", "preempt", "profile", "profiler", "session", "stop", "train"}
    found = [
        f"{path.relative_to(TOP)}:{one.lineno}: {ast.unparse(one)}"
        for package in ("pytorch", "integrations")
        for path in sorted((TOP / "hpcdet" / package).rglob("*.py"))
        for one in ast.walk(ast.parse(path.read_text()))
        if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store)
        if ast.unparse(one.value).rpartition(".")[2].lstrip("_") in owners
    ]
    assert not found


def test_no_path_of_a_machine_is_committed() -> None:
    found = [
        f"{path.relative_to(TOP)}: {line.strip()}"
        for path in tracked()
        if path.suffix in {".py", ".md", ".yaml", ".j2", ".sh", ".toml", ".txt"}
        for line in path.read_text().splitlines()
        if re.search(r"(?<![\w.$}])/(work|farm|root|home/\w+)/", line)
        and path != Path(__file__).resolve()
    ]
    assert not found


def test_shares_are_written_with_a_space_before_the_sign() -> None:
    formats = re.compile(r":[.\d]*%\}|[\d}]%[\"'`]")
    there = [*(TOP / "hpcdet").rglob("*.py"), *(TOP / "templates").rglob("*.j2")]
    found = [
        f"{path}: {line.strip()}"
        for path in there
        for line in path.read_text().splitlines()
        if formats.search(line) and "{%" not in line
    ]
    assert not found, "units.percent writes 12 %"


def test_a_dose_that_is_asked_for_reaches_the_tests() -> None:
    asked = set(re.findall(r"HPCDET_[A-Z_]+(?==)", (TOP / "Makefile").read_text()))
    assert asked >= {"HPCDET_FUZZ", "HPCDET_ATTACK_S", "HPCDET_CHAOS"}
    assert asked <= dose.NAMES
