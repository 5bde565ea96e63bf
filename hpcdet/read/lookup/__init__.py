"""Lookup of experiments, trials and checkpoints by what a person types.

A module belongs here if it leads from a name to a folder, or from a trial to its parents.
"""
