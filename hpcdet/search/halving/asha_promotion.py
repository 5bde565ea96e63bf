"""ASHA that promotes: every trial pauses at every rung, and the best ``1/divisor`` go on later.

Algorithm 2 of Li et al., "A System for Massively Parallel Hyperparameter Tuning" (2018): a free
place takes the best paused trial of the highest rung where one may go on, else a new trial.
"""

from __future__ import annotations

from hpcdet.search.halving.rung_rules import Rule, Verdict


def _verdict(rank: int, cut: int) -> Verdict:
    return "pause"


RULE = Rule("promotion", _verdict)
