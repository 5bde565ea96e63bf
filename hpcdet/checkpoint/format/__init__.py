"""The format of a checkpoint on disk: rank files, tables and manifests.

A module belongs here if it knows bytes, offsets or keys of the files.
Deciding what to write, and when, belongs to ``write`` and ``keep``.
"""
