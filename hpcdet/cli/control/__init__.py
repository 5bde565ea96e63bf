"""Verbs that change an experiment that exists: cancel, pause, resume, retry, set.

A verb belongs here if the holder of the lease has to act on it.
How a request is delivered and awaited belongs to ``request``.
"""
