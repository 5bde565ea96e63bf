"""The experiment's folder: paths, typed records, trust, identity.

A module belongs here if it knows the place or the form of a file of the experiment.
"""
