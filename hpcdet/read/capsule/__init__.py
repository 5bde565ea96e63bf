"""Capsules: the recorded dependencies of a run's bits, compared with those at another time.

A run is repeated by ``jobs.repeat``; here nothing is run, and nothing of torch is imported.
"""
