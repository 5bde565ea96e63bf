"""``make governed-replications``: published results of gradient routing beside ours, three seeds.

Split autoencoders (Cloud et al. 2024, table 2), exposure of canaries, and data that can be removed
(after Shilov et al. 2025), all through hpcdet's router and lanes. Each training is saved as it
ends: a second call trains what is missing, and else only prints. Each criterion is printed as shown
or not shown; the exit code is 0 once everything has been trained and printed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
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
    replication_criteria,
    split_autoencoder,
    two_ranks,
)

NAME = "governed-replications"
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Training:
    """One training: which part, row of its table, and seed; what else it depends on."""

    part: str
    setting: str
    seed: int
    settings: str
    train: Callable[[], dict[str, Any]]

    @property
    def key(self) -> tuple[str, str, int]:
        return self.part, self.setting, self.seed


def trainings() -> Iterator[Training]:
    """All of them, those of the first seed first."""
    parts: Any = {"4.3": removable_lanes, "4.1": split_autoencoder, "4.2": character_canaries}
    for seed in SEEDS:
        for part, module in parts.items():
            for name, setting in module.SETTINGS.items():

                def train(module: Any = module, name: str = name, seed: int = seed) -> Any:
                    return module.train(name, seed)

                yield Training(part, name, seed, f"{setting!r}, {module.STEPS} steps", train)
        yield Training("ranks", "3", seed, "float64", lambda seed=seed: two_ranks.compare(seed))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--print", action="store_true", help="train nothing, print what is there")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    wanted = list(trainings())
    rows = {_key(row): row for row in results.written(NAME)}
    done = {one.key: rows[one.key] for one in wanted if _fits(rows.get(one.key), one)}
    for number, one in enumerate(wanted, 1):
        if one.key in done or asked.print:
            continue
        begin = time.monotonic()
        figures = one.train()
        done[one.key] = {
            "part": one.part,
            "setting": one.setting,
            "seed": one.seed,
            "settings": one.settings,
            "seconds": round(time.monotonic() - begin, 1),
            "figures": figures,
        }
        _save(list(done.values()))
        print(f"{number}/{len(wanted)} {one.key} {json.dumps(figures)}", flush=True)
    missing = [one.key for one in wanted if one.key not in done]
    by_setting: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in wanted:
        if one.key in done:
            by_setting.setdefault((one.part, one.setting), []).append(done[one.key]["figures"])
    for line in replication_criteria.tables(by_setting):
        print(line)
    if missing:
        print(f"{len(missing)} of {len(wanted)} trainings are missing: run it again")
    return 1 if missing else 0


def _key(row: dict[str, Any]) -> tuple[str, str, int]:
    return row["part"], row["setting"], row["seed"]


def _fits(row: dict[str, Any] | None, wanted: Training) -> bool:
    """A result of other settings is of no use."""
    return row is not None and row["settings"] == wanted.settings


def _save(rows: list[dict[str, Any]]) -> None:
    """Replace the results as a whole: a call that is killed leaves those of before."""
    folder = TOP / "benchmarks" / "results"
    results.write(f".{NAME}", rows)
    (folder / f".{NAME}.json").replace(folder / f"{NAME}.json")


if __name__ == "__main__":
    sys.exit(main())
