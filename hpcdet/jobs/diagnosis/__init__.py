"""Checks of ``doctor`` and ``site check``: on this machine, on a node, and between two nodes.

A module belongs here if it looks at a site or a machine, and at no experiment.
"""
