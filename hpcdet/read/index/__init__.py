"""The index: an SQLite file derived from the experiment, updated incrementally.

A module belongs here if it knows a table of the index.
The values come from ``views``.
"""
