"""Verbs that set results beside each other: what differs, what mattered, what came from what.

A module belongs here if its verb relates several experiments or trials.
"""
