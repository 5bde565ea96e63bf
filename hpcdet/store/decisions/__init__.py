"""Decisions and the right to take them: leases, terms, snapshots.

A module belongs here if it serves the holder of the lease.
"""
