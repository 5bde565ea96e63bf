"""Checks of a config: what one value may be, and keys that do not fit together.

A module belongs here if it finds what is wrong or doubtful, or what a config amounts to.
"""
