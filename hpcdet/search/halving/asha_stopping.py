"""ASHA that stops: a trial outside the best ``1/divisor`` at a rung ends there, for good.

Determined's rule (``stop_once: true``), after Li et al., "A System for Massively Parallel
Hyperparameter Tuning" (2018). The best so far always goes on, so that the first trial trains in
full: the quickest way to one good model, at the price of what is stopped too early.
"""

from __future__ import annotations

from hpcdet.search.halving.rung_rules import Rule, Verdict


def _verdict(rank: int, cut: int) -> Verdict:
    return "on" if rank < max(cut, 1) else "stop"


RULE = Rule("stopping", _verdict)
