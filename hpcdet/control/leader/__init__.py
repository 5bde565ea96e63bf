"""The holder of the lease and its memory: decided state, cached trials, lost workers.

A module belongs here if it holds state that a turn begins from.
The steps of a turn belong to ``turn``.
"""
