"""The fleet of workers: how many are wanted, which jobs wait, which are stuck or lost.

A module belongs here if it decides on submissions or judges jobs.
"""
