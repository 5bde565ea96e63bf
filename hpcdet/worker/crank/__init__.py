"""Turns of the crank by workers, and retries while storage is away.

A module belongs here if it stands between a worker and ``hpcdet.control``.
"""
