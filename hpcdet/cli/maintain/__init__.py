"""Verbs for daemons and derived files: searcher, worker, index.

A verb belongs here if an operator needs it and a researcher rarely does.
"""
