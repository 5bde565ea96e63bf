"""The contents of an experiment's folder, read once and typed.

A module belongs here if views, report and index all need it.
"""
