"""The training loop: batches, validations, saves, and the state of a trial.

A module belongs here if it acts between steps.
The step itself belongs to ``step``.
"""
