"""``context.governance``: training under a policy, for loops of one's own and for ``pytorch``.

May come in: what a loop asks of the guard. What the guard does is ``hpcdet.guard``'s.
"""
