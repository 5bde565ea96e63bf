"""Sample order, random numbers per sample, loaders, virtual ranks.

A module belongs here if it determines which data a step sees.
"""
