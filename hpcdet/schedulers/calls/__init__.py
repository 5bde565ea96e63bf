"""Calls of a scheduler's commands: how they are run, how often, and how long an answer is kept.

A module belongs here if it serves several backends and knows none.
"""
