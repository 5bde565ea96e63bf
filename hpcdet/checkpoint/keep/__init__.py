"""The life of committed checkpoints: retention, replication, inheritance, conversion.

A module belongs here if it treats a checkpoint as a whole.
Its bytes are read and written by ``read`` and ``write``.
"""
