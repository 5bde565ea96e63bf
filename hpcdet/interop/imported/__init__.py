"""Experiments of other platforms, taken over as experiments that have ended.

A module belongs here if it reads what another platform recorded.
"""
