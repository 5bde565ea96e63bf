"""Stopping rules for trials and for the whole search, on top of any search method.

A rule belongs here if it ends training early and needs no rungs.
"""
