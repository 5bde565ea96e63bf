"""Loading: committed checkpoints become state again, every byte checked.

A module belongs here if it reads rank files.
The layout of the files belongs to ``format``.
"""
