"""Turns of the crank by workers, and retries while the storage is unavailable.

A module belongs here if it stands between a worker and ``hpcdet.control``.
"""
