"""The local backend: jobs are processes of this machine.

A module belongs here if it runs or records such processes.
"""
