"""Cohorts: as hybrid, but who goes on is decided when as many have come as one full training costs.

Asynchronous halving lets the best of the first ``divisor`` trials go on, and then the best of the
next: early words, on few trials, each of which costs ``divisor`` times what it was given for.
Synchronous halving waits until a whole rung has reported, and places wait with it. Here the
trials of a rung count in cohorts of ``divisor**k``, k rungs below the highest, as in a synchronous
bracket, but nobody waits: a free place takes the next new trial, of the next cohort. Once all
trials were made, a free place takes whoever would go on under ``hybrid``.
"""

from __future__ import annotations

from hpcdet.search.halving.rung_rules import Rule, Verdict


def _verdict(rank: int, cut: int) -> Verdict:
    return "on" if rank < cut else "pause"


RULE = Rule("cohorts", _verdict, cohorts=True)
