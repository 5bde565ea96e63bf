"""Metrics of batches and ranks, reduced to one value each.

A module belongs here if it works on values, not on models.
"""
