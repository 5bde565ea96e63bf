"""Sending of messages: by a process beside the holder of the lease, which never waits for it.

A channel belongs here. What is told of, and when, belongs to ``upkeep.notify``.
"""
