"""Container runtimes that the ranks of an attempt run in, a module for each.

A module belongs here if it knows the command line of one runtime.
"""
