"""Comparison of experiments and trials, and the effects of a search's hyperparameters.

A module belongs here if it answers what differs, or what a difference came from.
"""
