"""Exports: the records of a governed model, in formats of others.

A module belongs here if it writes one of them, or gathers what they are written from.
"""
