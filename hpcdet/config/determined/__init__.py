"""Determined's keys and shapes that hpcdet reads, warns of or refuses.

A module belongs here if it exists for configs written for Determined 0.38.
"""
