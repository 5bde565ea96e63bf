"""``python -m benchmarks.search PART [--quick]``: rows as JSON on standard output."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

PARTS = {
    "a": "decisions",
    "b": "suggestions",
    "c": "clusters",
    "d": "networks",
    "e": "calibration",
    "f": "samplers",
    "g": "headline",
    "h": "tabled",
}


def main() -> int:
    # what a part has started outside, it ends on its way out
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    part, quick = sys.argv[1], "--quick" in sys.argv
    begin = time.monotonic()
    rows = importlib.import_module(f"benchmarks.search.{PARTS[part]}").measure(quick)
    json.dump({"part": part, "seconds": time.monotonic() - begin, "rows": rows}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
