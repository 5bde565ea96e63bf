"""What ``hpcdet submit`` uses of the processor: itself, and with its test of the code."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests import experiments

Row = dict[str, Any]

MOST_S = 1.5
_TOP = Path(__file__).resolve().parents[2]
_CONFIG = str(_TOP / "examples" / "digits" / "random.yaml")
_SUBMIT = [sys.executable, "-m", "hpcdet", "submit", _CONFIG, "--hold"]
_CASES = (
    ("submit --no-test", [*_SUBMIT, "--no-test"], MOST_S),
    ("submit, its test of the code included", _SUBMIT, None),
)
_PIP = [sys.executable, "-m", "pip", "--version"]


def rows(rounds: int, folder: Path) -> Iterator[Row]:
    """Yield the rows, each case beside ``pip --version`` in turn."""
    environment = {**os.environ, "HPCDET_ROOT": str(folder / "root"), "PYTHONPATH": str(_TOP)}
    with experiments.local_jobs(folder / "state") as state:
        environment["HPCDET_LOCAL_STATE"] = str(state)
        for what, argv, goal in _CASES:
            pairs = [(_used(argv, environment), _used(_PIP, environment)) for _ in range(rounds)]
            for number, kind in enumerate(("processor time", "wall")):
                ours, peer = (
                    statistics.median(pair[who][number] for pair in pairs) for who in (0, 1)
                )
                least = goal if kind == "processor time" else None
                yield {
                    "what": f"{what}, {kind}, s",
                    "unit": "s",
                    "ours": round(ours, 3),
                    "peer": round(peer, 3),
                    "peer_name": "pip --version",
                    "ratio": round(ours / peer, 3),
                    "goal": least,
                    "met": None if least is None else ours <= least,
                    "runs": rounds,
                }


def _used(argv: Sequence[str], environment: Mapping[str, str]) -> tuple[float, float]:
    """Seconds of the processor, of all that it waits for, and of the clock."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(argv, env=environment, check=True, capture_output=True)
    wall, now = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return now.ru_utime - before.ru_utime + now.ru_stime - before.ru_stime, wall
