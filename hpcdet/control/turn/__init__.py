"""One turn of the crank: read, learn, decide, write.

A module belongs here if it is one step of the turn.
State that survives the turn belongs to ``leader``.
"""
