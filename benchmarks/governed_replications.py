"""``make governed-replications``: published results of gradient routing beside ours, three seeds.

Split autoencoders (Cloud et al. 2024, table 2), exposure of canaries (Carlini et al. 2019), and
data that can be removed (after Shilov et al. 2025), all through hpcdet's router and lanes; and
that entropies of weights do not tell memorization. Each training is saved as it ends, in
build/governed-replications: a second call trains what is missing or has other settings, and else
only prints (after a change of code, remove the folder); several calls at once may train parts and
seeds. Each criterion is printed as shown or not; exit code 0 if all has been trained and what is
required is shown.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"
TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP), str(TOP / "benchmarks")]

import results  # noqa: E402
import torch  # noqa: E402
from governed import (  # noqa: E402
    character_canaries,
    removable_lanes,
    replication_tables,
    split_autoencoder,
    two_ranks,
    weight_entropies,
)

NAME = "governed-replications"
SEEDS = (0, 1, 2)
PARTS: Any = {
    "autoencoders": split_autoencoder,
    "canaries": character_canaries,
    "lanes": removable_lanes,
    "entropies": weight_entropies,
}


@dataclass(frozen=True)
class Training:
    """One training: which part, row of its table, and seed; what else it depends on."""

    part: str
    setting: str
    seed: int
    depends: str
    train: Callable[[], dict[str, Any]]

    def saved(self, folder: Path) -> dict[str, Any] | None:
        """Its figures, if it has been trained with the same settings; else None."""
        path = self._path(folder)
        found = json.loads(path.read_text()) if path.exists() else {"depends": ""}
        return found["figures"] if found["depends"] == self.depends else None

    def save(self, folder: Path) -> None:
        """Train and save its figures as a whole."""
        begin = time.monotonic()
        figures = self.train()
        found = {
            "depends": self.depends,
            "seconds": round(time.monotonic() - begin, 1),
            "figures": figures,
        }
        folder.mkdir(parents=True, exist_ok=True)
        path = self._path(folder)
        path.with_suffix(".tmp").write_text(json.dumps(found, indent=1))
        path.with_suffix(".tmp").replace(path)

    def _path(self, folder: Path) -> Path:
        return folder / f"{self.part}-{self.setting}-{self.seed}.json"


def trainings(parts: Sequence[str], seeds: Sequence[int] = SEEDS) -> Iterator[Training]:
    """All of some parts, those of the first seed first."""
    for seed in seeds:
        if "ranks" in parts:
            depends = f"{split_autoencoder.SETTINGS!r}, {two_ranks.STEPS} steps"
            yield Training("ranks", "all", seed, depends, lambda seed=seed: two_ranks.compare(seed))
        for part in [one for one in PARTS if one in parts]:
            module = PARTS[part]
            for name, setting in module.SETTINGS.items():

                def train(module: Any = module, name: str = name, seed: int = seed) -> Any:
                    return module.train(name, seed)

                yield Training(part, name, seed, f"{setting!r}, {module.STEPS} steps", train)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train what is missing, print and write; exit code 1 if something is missing or not shown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--print", action="store_true", help="train nothing, print what is there")
    parser.add_argument("--part", choices=["ranks", *PARTS], action="append", help="of all, some")
    parser.add_argument("--seed", choices=SEEDS, type=int, action="append", help="of all, some")
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # penalties drive numbers to where steps are ten times as slow
    folder = TOP / "build" / NAME
    wanted = list(trainings(asked.part or ["ranks", *PARTS], asked.seed or SEEDS))
    for number, one in enumerate(wanted, 1):
        if not asked.print and one.saved(folder) is None:
            one.save(folder)
            said = f"{one.part} {one.setting}, seed {one.seed}"
            print(f"{number}/{len(wanted)} {said}: {json.dumps(one.saved(folder))}", flush=True)
    by_part: dict[str, dict[str, list[dict[str, Any]]]] = {}
    missing = 0
    for one in wanted:
        figures = one.saved(folder)
        missing += figures is None
        if figures is not None:
            by_part.setdefault(one.part, {}).setdefault(one.setting, []).append(figures)
    for line in replication_tables.lines(by_part):
        print(line)
    if missing:
        print(f"{missing} of {len(wanted)} trainings are missing: run it again")
        return 1
    if not asked.part and not asked.seed:
        results.write(NAME, replication_tables.rows(by_part))
    shown = replication_tables.shown(by_part)
    print("shown" if shown else "NOT shown")
    return 0 if shown else 1


if __name__ == "__main__":
    sys.exit(main())
