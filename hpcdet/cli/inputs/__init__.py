"""Inputs of a submission: config, model folder, site, and what to wait for.

A module belongs here if ``run`` and other rooms read the same input with it.
"""
