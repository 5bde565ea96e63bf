"""Creation of an experiment: code snapshot, provenance, repository, inherited results.

A module belongs here if it fills the experiment's folder once.
"""
