"""Attempts inside an allocation: started as steps, watched, judged, closed.

A module belongs here if it concerns one attempt.
"""
