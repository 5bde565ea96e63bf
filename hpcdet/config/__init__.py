"""Experiment configs and policies as users write them, checked and completed."""
