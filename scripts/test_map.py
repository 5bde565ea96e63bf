"""Which tests execute which module, and how long they take: recorded once, asked often.

    python scripts/test_map.py record   # build/coverage and build/tests.xml into tests/map.json
    python scripts/test_map.py for hpcdet/store/fs/files.py ...
    python scripts/test_map.py quick

``record`` reads the contexts of ``make coverage`` and the times of the last whole run. ``for``
prints the test files that execute a function of the given modules; a module without a record is
taken for its whole folder. ``quick`` prints the files that need no cluster and end soon.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parent.parent
MAP = TOP / "tests" / "map.json"
DATA = TOP / "build" / "coverage"
TIMES = TOP / "build" / "tests.xml"
QUICK_S = 10.0
"""Seconds that a whole test file may take to be among the quick ones."""
CLUSTER = ("tests/slurm/", "tests/local/")


def body_lines(source: str) -> set[int]:
    """The lines of functions' bodies: what runs when a module is used, not when it is imported."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines.update(range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def record() -> dict[str, Any]:
    """The map, from the data of coverage and the report of the last run."""
    from coverage import CoverageData

    data = CoverageData(str(DATA / "data"))
    data.read()
    executed: dict[str, set[str]] = defaultdict(set)
    for file in data.measured_files():
        module = Path(file).relative_to(TOP).as_posix()
        bodies = body_lines(Path(file).read_text(encoding="utf-8"))
        for line, contexts in data.contexts_by_lineno(file).items():
            if line in bodies:
                executed[module] |= {one.partition("::")[0] for one in contexts if "::" in one}
    seconds = times()
    files = sorted(set(seconds).union(*executed.values()))
    return {
        "tests": {file: round(seconds.get(file, 0.0), 1) for file in files},
        "modules": {
            module: sorted(files.index(one) for one in found)
            for module, found in sorted(executed.items())
        },
    }


def times() -> dict[str, float]:
    """Seconds of each test file in the last whole run."""
    seconds: dict[str, float] = defaultdict(float)
    for case in ET.parse(TIMES).iter("testcase"):
        parts = case.get("classname", "").split(".")
        while parts and not (TOP / "/".join(parts)).with_suffix(".py").is_file():
            parts.pop()  # a class within the file
        seconds["/".join(parts) + ".py"] += float(case.get("time", 0))
    return dict(seconds)


def tests_for(known: dict[str, Any], modules: Iterable[str]) -> list[str]:
    """The test files of ``modules``, those that take least time first."""
    files = list(known["tests"])
    found: set[str] = set()
    for module in modules:
        path = Path(module)
        name = (path.resolve().relative_to(TOP) if path.is_absolute() else path).as_posix()
        if name.startswith("tests/"):
            found.add(name)
            continue
        if name in known["modules"]:
            found |= {files[index] for index in known["modules"][name]}
        else:
            found.add(f"tests/{Path(name).parts[1]}")
    return sorted(
        (one for one in found if (TOP / one).exists()), key=lambda one: _seconds(known, one)
    )


def quick(known: dict[str, Any]) -> list[str]:
    """The test files that need no cluster and end soon."""
    return [
        file
        for file, seconds in known["tests"].items()
        if 0 < seconds <= QUICK_S and not file.startswith(CLUSTER) and (TOP / file).exists()
    ]


def _seconds(known: dict[str, Any], file: str) -> float:
    return float(known["tests"].get(file, 0.0))


def main() -> int:
    """Record, or print the test files that are asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=("record", "for", "quick"))
    parser.add_argument("modules", nargs="*")
    given = parser.parse_args()
    if given.what == "record":
        MAP.write_text(json.dumps(record(), indent=None, separators=(",", ":")) + "\n")
        return 0
    known = json.loads(MAP.read_text())
    found = quick(known) if given.what == "quick" else tests_for(known, given.modules)
    if not found:
        print(f"no test is known for {' '.join(given.modules) or 'this'}", file=sys.stderr)
        return 1
    total = sum(_seconds(known, file) for file in found)
    print(f"{len(found)} test files, {total:.0f} s when they were recorded", file=sys.stderr)
    print(*found, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
