"""Launchers: what starts the ranks of an attempt inside an allocation, a module for each.

A module belongs here if it knows the options of one launcher and what that says when ranks end.
"""
