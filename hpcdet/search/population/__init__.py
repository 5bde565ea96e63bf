"""Population-based search: PBT and PB2, their members and schedules.

A module belongs here if trials copy each other.
"""
