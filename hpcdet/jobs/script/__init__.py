"""The batch script and its submission: options, launcher, lanes, environment.

A module belongs here if it shapes the text or the argv that the scheduler gets.
"""
