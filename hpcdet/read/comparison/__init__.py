"""Experiments and trials beside each other, and what a search says of its hyperparameters.

A module belongs here if it answers what differs, or what a difference came from.
"""
