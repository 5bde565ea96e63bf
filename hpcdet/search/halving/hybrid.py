"""Hybrid ASHA: a trial among the best ``1/divisor`` goes on in place, any other is paused.

As promotion, but who would be promoted at once is never saved, taken off and brought back; and as
stopping, but who is overtaken by later, worse trials may still go on. No place waits on a rung.
"""

from __future__ import annotations

from hpcdet.search.halving.rung_rules import Rule, Verdict


def _verdict(rank: int, cut: int) -> Verdict:
    return "on" if rank < cut else "pause"


RULE = Rule("hybrid", _verdict, paced=True)
