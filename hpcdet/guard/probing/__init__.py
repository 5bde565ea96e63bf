"""Probes of a live model: whether rows are what routing takes them for.

May come in: what is watched of a model, and what is tried on it.
"""
