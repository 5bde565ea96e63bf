"""``make demo``: a search over four small networks on this machine, then its report."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent


def main() -> int:
    """Submit the example, wait for it, write ``report.html``."""
    hpcdet = Path(sys.executable).with_name("hpcdet")
    environment = os.environ | {"HPCDET_ROOT": str(TOP / ".demo")}
    config = TOP / "examples" / "digits" / "random.yaml"

    submitted = subprocess.run(
        [hpcdet, "submit", config, "--site", "local", "--wait", "-o", "id"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    experiment = submitted.stdout.strip()
    if submitted.returncode != 0 or not experiment:
        return submitted.returncode or 1
    for verb in (["status"], ["report", "-o", str(TOP / "report.html")]):
        done = subprocess.run([hpcdet, verb[0], experiment, *verb[1:]], env=environment)
        if done.returncode != 0:
            return done.returncode
    print(
        f"\nThe experiment is in {TOP / '.demo' / experiment}; open report.html.", file=sys.stderr
    )
    return 0


if __name__ == "__main__":
    if shutil.which("git") is None:
        print("note: git is not installed; the report will not name the commit", file=sys.stderr)
    sys.exit(main())
