"""Claims: finding work, and taking it by exclusive creation.

A module belongs here if it decides what a worker does next.
"""
