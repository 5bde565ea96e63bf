"""Checks of a whole config: keys that do not fit together, and what the config amounts to.

A module belongs here if it needs several sections of a config.
What one value may be belongs to ``models``.
"""
