"""Claims: the search for work, and claims on it by exclusive creation.

A module belongs here if it decides what a worker does next.
"""
