"""Saving: the state of all ranks becomes files and one manifest.

A module belongs here if it takes part in a save between its start and its commit.
The layout of the files belongs to ``format``.
"""
