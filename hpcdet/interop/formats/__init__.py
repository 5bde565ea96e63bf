"""Exports, one module for each format; a library that it needs is imported where it is used.

A module belongs here if it writes an experiment for other programs.
"""
