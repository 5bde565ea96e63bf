"""Models of the config: every key with its type, default and meaning.

A class belongs here if people write its keys.
Checks across sections belong to ``check``.
"""
