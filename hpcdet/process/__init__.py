"""The process of a rank: place, signals, entry point, environment.

A module belongs here if it concerns one process and no other rank.
"""
