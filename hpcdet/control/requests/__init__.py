"""Requests of users to an experiment, forks of its search, and replays of its decisions.

A module belongs here if a verb calls it outside of a turn.
"""
