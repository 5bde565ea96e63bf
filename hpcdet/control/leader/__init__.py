"""The holder of the lease and its memory: decided state, cached trials, lost workers.

A module belongs here if a turn begins from it.
The steps of a turn belong to ``turn``.
"""
