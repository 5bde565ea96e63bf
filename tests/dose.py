"""How much chaos a run deals, and from which seed it is drawn; see ``tests.chaos``."""

from __future__ import annotations

import os

BLOWS = int(os.environ.get("HPCDET_CHAOS", "20"))
SEED = int(os.environ.get("HPCDET_CHAOS_SEED", "1"))
EVERY_CALL = bool(os.environ.get("HPCDET_EVERY_CALL"))
"""Whether a folder is exchanged before each call of a rank, not before a sample of them."""
ENTRYPOINTS = int(os.environ.get("HPCDET_ENTRYPOINTS_EVERY", "5"))
"""Of the table of entrypoints one in so many is executed; 1: all, in five minutes."""
SEARCHES = int(os.environ.get("HPCDET_SEARCHES", "200"))
"""Random searches in which each rule of halving is compared with its definition."""
FRAMEWORKS = bool(os.environ.get("HPCDET_FRAMEWORKS"))
"""Whether Determined's faces of other frameworks are killed; two minutes."""
DAMAGED = int(os.environ.get("HPCDET_DAMAGED", "60"))
"""Damaged records that verbs read; 2,000 take a quarter of an hour."""
DAMAGED_SEED = int(os.environ.get("HPCDET_DAMAGED_SEED", "1"))
