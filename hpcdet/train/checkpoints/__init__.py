"""Checkpoints during training: requests, order, staging, replication, inheritance.

A module belongs here if it connects a session with ``hpcdet.checkpoint``.
"""
