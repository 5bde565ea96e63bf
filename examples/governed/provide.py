"""Writes what the policy names of each source: its data, their manifest, and a signed chain.

``python provide.py`` in this folder makes all of it anew, with a key of its own, and prints what
policy.yaml has to say then. Each step is a command that anyone can type.
"""

from __future__ import annotations

import hashlib
import subprocess
from importlib import resources
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

SHARES = {"public": 0.6, "licensed": 0.3, "restricted": 0.1}
VALIDATION = 360
ORIGIN = resources.files("sklearn.datasets.data") / "digits.csv.gz"


def main() -> None:
    """Write the files of all sources."""
    pixels, labels = load_digits(return_X_y=True)
    rows = np.column_stack([labels, pixels]).astype(int)[: len(labels) - VALIDATION]
    ends = np.cumsum([round(share * len(rows)) for share in SHARES.values()])
    by = "--actor provide.py"
    origin = f"digits.csv.gz=sha256:{hashlib.sha256(ORIGIN.read_bytes()).hexdigest()}"
    if not Path("steward.key").exists():
        run("hpcdet policy keygen --to steward.key")
    for name, part in zip(SHARES, np.split(rows, ends[:-1]), strict=True):
        data, chain, manifest = Path("data", name), f"{name}.chain", f"{name}.manifest.json"
        data.mkdir(parents=True, exist_ok=True)
        np.savetxt(data / "digits.csv", part, fmt="%d", delimiter=",")
        Path(chain).unlink(missing_ok=True)
        Path(manifest).unlink(missing_ok=True)
        run(f"hpcdet data manifest {data} --source {name} --to {manifest}")
        run(f"hpcdet data chain add {chain} acquire {by} --subject {origin}")
        run(f"hpcdet data chain add {chain} transform {by} --subject {data}/digits.csv")
        run(f"hpcdet data chain add {chain} shard {by} --manifest {manifest}")
        run(f"hpcdet data chain add {chain} admit {by} --manifest {manifest}")
        run(f"hpcdet data chain sign {chain} --key steward.key")


def run(command: str) -> None:
    """Print a command and run it."""
    print(f"$ {command}", flush=True)
    subprocess.run(command.split(), check=True)


if __name__ == "__main__":
    main()
