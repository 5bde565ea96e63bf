"""Claims of a campaign: what was wanted beside what was seen, as rows of its results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import results


@dataclass(frozen=True)
class Claimed:
    """A claim: what was wanted and what was seen, and figures beside it."""

    what: str
    wanted: Any
    seen: Any
    beside: Any = None

    @property
    def met(self) -> bool:
        """True if what was wanted was seen."""
        return bool(self.wanted == self.seen)

    @property
    def row(self) -> results.Row:
        """The row of the results: what was seen is ours, and what was wanted is the goal."""
        row = {
            "what": self.what,
            "unit": "claim",
            "ours": self.seen,
            "peer": None,
            "peer_name": "",
            "ratio": None,
            "goal": self.wanted,
            "met": self.met,
            "runs": 1,
        }
        return row if self.beside is None else {**row, "beside": self.beside}


def tell(found: Sequence[Claimed]) -> None:
    """Print each claim in a line: whether it is met, and what was seen."""
    for one in found:
        instead = "" if one.met else f" (wanted {one.wanted})"
        print(f"{'yes' if one.met else 'NO '}  {one.what}: {one.seen}{instead}", flush=True)


def conclude(name: str, found: Sequence[Claimed], *, whole: bool) -> int:
    """Write the results of a campaign, and say whether it has shown what it is for.

    Args:
        name: of the results.
        whole: all parts were run; else nothing is written.

    Returns:
        The exit code: 0 if there are claims and all are met.
    """
    met = sum(one.met for one in found)
    if whole:
        results.write(name, [one.row for one in found])
    shown = bool(found) and met == len(found)
    print(f"{met} of {len(found)} claims are met: {'shown' if shown else 'NOT shown'}")
    return 0 if shown else 1
