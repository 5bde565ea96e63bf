"""The scripts of the project: the tests of a module, and what a commit message looks like."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests import TOP

sys.path.insert(0, str(TOP / "scripts"))

import commit_message  # type: ignore[import-not-found]
import test_map as modules_and_tests  # type: ignore[import-not-found]


def test_lines_of_bodies_are_what_runs_when_a_module_is_used() -> None:
    source = "import os\n\ndef f(a=os.sep):\n    b = a\n    return b\n\nclass C:\n    x = 1\n"
    assert modules_and_tests.body_lines(source) == {4, 5}


def test_the_tests_of_a_module_are_those_that_execute_it() -> None:
    known = {
        "tests": {"tests/store/test_files.py": 2.0, "tests/cli/test_frame.py": 1.0},
        "modules": {"hpcdet/store/fs/files.py": [0, 1]},
    }
    of = modules_and_tests.tests_for
    both = ["tests/cli/test_frame.py", "tests/store/test_files.py"]
    assert of(known, ["hpcdet/store/fs/files.py"]) == both
    assert of(known, [str(TOP / "hpcdet/store/fs/files.py")]) == both
    assert of(known, ["hpcdet/read/new.py"]) == ["tests/read"]  # without a record: its folder
    assert of(known, ["tests/store/test_files.py"]) == ["tests/store/test_files.py"]


def test_the_record_knows_most_modules_and_the_quick_ones_need_no_cluster() -> None:
    known = json.loads(modules_and_tests.MAP.read_text())
    there = {path.relative_to(TOP).as_posix() for path in (TOP / "hpcdet").rglob("*.py")}
    assert len(known["modules"].keys() & there) > 0.8 * len(known["modules"])
    quick = modules_and_tests.quick(known)
    assert len(quick) > 30 and not any("slurm" in one.split("/")[1] for one in quick)
    argv = [sys.executable, str(TOP / "scripts" / "test_map.py"), "for", "hpcdet/units.py"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert "test files" in done.stderr and done.stdout.splitlines()


@pytest.mark.parametrize(
    ("message", "wrong"),
    [
        ("Say what\n\nThe reason.\n", ""),
        ("Say what\n\nThe reason.\n# a comment of Git's\n", ""),
        ("Say what\n", "no body"),
        ("Say what\nThe reason.\n", "second line"),
        ("x" * 73 + "\n\nThe reason.\n", "73 characters"),
        ("\n\nThe reason.\n", "first line is empty"),
    ],
)
def test_a_commit_message_has_a_subject_and_a_body(message: str, wrong: str) -> None:
    found = commit_message.problem(message)
    assert wrong in found and bool(wrong) == bool(found)
