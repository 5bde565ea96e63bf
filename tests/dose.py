"""How much the tests do on request: every variable that sets a dose, read before tests begin."""

from __future__ import annotations

import os
import random

NAMES: set[str] = set()
"""The variables of all doses; ``conftest`` takes every other one of hpcdet's away."""


def _of(name: str, usual: str = "") -> str:
    NAMES.add(name)
    return os.environ.get(name, usual)


BLOWS = int(_of("HPCDET_CHAOS", "20"))
"""Blows that ``tests.chaos`` deals."""
SEED = int(_of("HPCDET_CHAOS_SEED", "1"))
KINDS = _of("HPCDET_CHAOS_KINDS")
"""Kinds of blows, separated by blanks; all if empty."""
EVERY_CALL = bool(_of("HPCDET_EVERY_CALL"))
"""True to exchange a folder before each call of a rank, not before a sample of them."""
COLD_BITS = bool(_of("HPCDET_COLD_BITS"))
"""True to disturb trials of cold ranks on Slurm, too; five minutes."""
EFFECTS = int(_of("HPCDET_EFFECTS_EVERY", "3"))
"""At one in so many of its effects a controller dies; 1: at each, in five minutes."""
ENTRYPOINTS = int(_of("HPCDET_ENTRYPOINTS_EVERY", "5"))
"""Of the table of entrypoints one in so many is executed; 1: all, in five minutes."""
SEARCHES = int(_of("HPCDET_SEARCHES", "200"))
"""Random searches in which each rule of halving is compared with its definition."""
NULL_SEARCHES = int(_of("HPCDET_NULL_SEARCHES", "2000"))
"""Searches without memorization in which false verdicts are counted; 100,000 take a minute."""
GOVERNED_SEARCHES = int(_of("HPCDET_GOVERNED_SEARCHES", "60"))
"""Searches by the searcher and its gates, of models that have learned nothing by heart."""
NULL_TRAININGS = int(_of("HPCDET_NULL_TRAININGS", "40"))
"""Searches of models that see each record once, in which false verdicts are counted."""
FRAMEWORKS = bool(_of("HPCDET_FRAMEWORKS"))
"""True to kill Determined's faces of other frameworks; two minutes."""
DAMAGED = int(_of("HPCDET_DAMAGED", "60"))
"""Damaged records that verbs read; 2,000 take a quarter of an hour."""
DAMAGED_SEED = int(_of("HPCDET_DAMAGED_SEED", "1"))
FORGERIES = int(_of("HPCDET_FUZZ", "300"))
"""Forged checkpoints that are loaded."""
FORGERIES_SEED = int(_of("HPCDET_FUZZ_SEED", "1"))
ATTACK_S = float(_of("HPCDET_ATTACK_S", "0"))
"""Seconds for which another user attacks ranks; 0: for one attempt."""
LATE_S = float(_of("HPCDET_LATE_S", "5"))
"""Seconds after which other nodes see what is new in a folder."""
STRANDED = _of("HPCDET_STRANDED")
"""``all`` cases of stranded experiments, ``real`` ranks, or ``full``: the shipped site, too."""
DICE_SEED = _of("HPCDET_DICE_SEED")
"""The seed of ``dice``; another one for each test if empty."""


def dice(name: str) -> random.Random:
    """Random numbers of a test; the seed is printed, and $HPCDET_DICE_SEED sets it."""
    seed = int(DICE_SEED or random.SystemRandom().randrange(10**6))
    print(f"{name}: HPCDET_DICE_SEED={seed}")
    return random.Random(f"{name} {seed}")
