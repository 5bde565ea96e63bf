"""Verbs that read: ls, status, show, logs, metrics, events, explain, report.

A verb belongs here if it changes nothing.
Computing the answer belongs to ``hpcdet.read``; a module here prints it.
"""
