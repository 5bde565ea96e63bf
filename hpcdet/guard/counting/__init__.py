"""The rows that each layer has learned from, counted by their sources.

May come in: what rows are by their sources, and counts of them. No optimizer, no checkpoint.
"""
