"""Verbs on checkpoints and on whole experiment folders.

A verb belongs here if it reads, moves or removes files that an experiment made.
"""
