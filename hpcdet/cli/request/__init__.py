"""Delivery of requests to an experiment, and the turn of the crank that obeys them.

A module belongs here if several control verbs need it.
"""
