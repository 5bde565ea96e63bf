"""The allocation: what the scheduler granted, the time left, notices to leave.

A module belongs here if it asks the scheduler or the clock.
"""
