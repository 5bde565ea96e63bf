"""Decisions and the right to take them: leases, terms, snapshots.

A module belongs here if it belongs to the holder of the lease.
"""
