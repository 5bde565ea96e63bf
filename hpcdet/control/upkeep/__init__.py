"""Upkeep after decisions: charges, packing, inherited checkpoints, notifications.

A module belongs here if an experiment would go on without it for a while.
"""
