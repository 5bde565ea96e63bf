"""The interface that every backend offers, and what backends share.

A module belongs here if it names no scheduler.
"""
