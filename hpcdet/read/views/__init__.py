"""Views: what the verbs print and the report shows, as frozen dataclasses.

A module belongs here if its result appears in ``-o json``.
"""
