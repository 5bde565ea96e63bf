"""The standing of trials: progress, controls, parents, pinned checkpoints.

A module belongs here if its answer concerns one trial.
"""
