"""The resolved config as nodes read it: sections, overrides, secrets.

A module belongs here if it reads ``experiment.yaml`` or values laid over it.
"""
