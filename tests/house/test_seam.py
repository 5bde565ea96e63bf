"""Schedulers and launchers are known to their own modules, and to nobody else."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
HPCDET = TOP / "hpcdet"

WORDS = re.compile(
    r"slurm|sbatch|squeue|scontrol|sacct|scancel|\bsinfo|salloc|(?<!j)srun|hetjob"
    r"|(?<![a-z])q(?:sub|stat|del|alter|hold|rls|rerun|select|mgr)(?![a-z])|torque|pbs",
    re.IGNORECASE,
)
"""Words of Slurm, PBS and Torque."""

OWN = (
    *("schedulers/slurm/", "schedulers/pbs_family/", "schedulers/pbs/", "schedulers/torque/"),
    *("launchers/srun.py", "launchers/pbsdsh.py"),
)
"""Backends, what those of one family share, and launchers that belong to one scheduler."""
RANKS = "process/ranks.py"
"""A rank reads its number where its launcher puts it."""
SECTIONS = (
    *("store/config/placement.py", "store/config/resolved_config.py", "store/config/overrides.py"),
    *("config/determined/foreign_shapes.py", "config/determined/unsupported_keys.py"),
)
"""The config's sections ``slurm`` and ``pbs``, which are Determined's."""


def words(path: Path) -> Iterator[tuple[int, str]]:
    """Each name and each literal of a module with its line, but for docstrings."""
    tree = ast.parse(path.read_text())
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield line, node.value
        for name in ("id", "attr", "arg", "name", "module", "asname"):
            if isinstance(found := getattr(node, name, None), str):
                yield line, found


def test_no_word_of_a_scheduler_stands_outside_its_backend() -> None:
    found = [
        f"{path.relative_to(HPCDET)}:{line}: {text!r}"
        for path in sorted(HPCDET.rglob("*.py"))
        if not str(path.relative_to(HPCDET)).startswith((*OWN, RANKS, *SECTIONS))
        for line, text in words(path)
        if WORDS.search(text)
    ]
    assert not found, "\n".join(found)


def test_words_are_found_in_names_and_literals(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('"""About Slurm."""\nimport os\nx = os.environ["SLURM_JOB_ID"]\nqsub = 1\n')
    assert {text for _, text in words(module) if WORDS.search(text)} == {"SLURM_JOB_ID", "qsub"}


def test_the_contract_against_imports_of_backends_holds_for_every_other_module() -> None:
    linted = tomllib.loads((TOP / "pyproject.toml").read_text())["tool"]["importlinter"]
    [contract] = [one for one in linted["contracts"] if one["name"].startswith("Backends and")]
    named = {*contract["source_modules"], *contract["forbidden_modules"]}
    there = {
        ".".join(path.relative_to(TOP).with_suffix("").parts).removesuffix(".__init__")
        for path in HPCDET.rglob("*.py")
        if "standin" not in path.parts  # it is found as a module of its own
    }
    aside = {"hpcdet", "hpcdet.__main__", "hpcdet.schedulers", "hpcdet.launchers"}
    outside = {one for one in there if not any(f"{one}.".startswith(f"{two}.") for two in named)}
    assert outside == aside
